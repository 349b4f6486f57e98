"""`asked`: the arguments of `pipeplan.solve`, `compare`, `frontier` and the others as a `Question`.

::

    model, cluster: names, files, objects ─┐
    batch or job, options of a job         ├─▶ asked() ─▶ Question: a model, a cluster, a job with an optimiser
    devices, bandwidth, latency            ─┘

The program passes what the command line says to the same function, so both refuse alike, in the same words.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_DEVICES, shown, whole
from pipeplan.core.job import Job, Objective, default_batch
from pipeplan.core.model import Model
from pipeplan.core.options import require
from pipeplan.core.parts import switch
from pipeplan.core.units import parse_bandwidth, parse_time
from pipeplan.core.wording import hint
from pipeplan.costs.sources import Costs
from pipeplan.io.load import load_carried_cluster, load_cluster, load_model

JOB = tuple(each.name for each in fields(Job) if each.name != "batch")
"""Options that are fields of `Job`."""
READING = ("merge_misbooked", "corrected")
"""Options of importers, off unless True."""
LINKS = ("devices", "bandwidth", "latency")
"""Options that describe equal devices in place of a cluster."""


@dataclass(frozen=True)
class Question:
    """A model, a cluster, and a job that names its optimiser; ``assumed`` says in words if that is the default."""

    model: Model
    cluster: Cluster
    job: Job
    assumed: str = ""

    def stated(self, costs: Costs) -> Costs:
        """Return the sources of an answer's costs with the optimiser that was assumed."""
        return replace(costs, assumed=self.assumed)


def asked(
    model: Any,
    cluster: Any = None,
    batch: Any = None,
    *,
    job: Any = None,
    example_inputs: Any = None,
    asker: str,
    **options: Any,
) -> Question:
    """Read the arguments of a function or of a command.

    Parameters
    ----------
    model : Model, str, Path or torch.nn.Module
        A model, the name or the file of one, or a module, which is profiled on ``example_inputs``. Of a workload's
        name, ``'module:function'`` or ``'hf:gpt2'``, sizes and operations are counted on the meta device.
    cluster : Cluster, str or Path, optional
        A cluster, or the name or the file of one; None if ``model`` is a workload file with devices of its own, or with
        ``devices``.
    batch : int or Job, optional
        Samples of one step; or a job, in place of the batch and the options of one.
    job : Job, optional
        The same.
    asker : str
        Name of the function, for errors.
    **options
        Fields of `Job`; ``merge_misbooked`` and ``corrected`` for importers; ``devices`` (a number of equal devices of
        the profile's own speed), and ``bandwidth`` and ``latency`` of the links between them.

    Raises
    ------
    InputError
        If an argument is invalid, is not known, contradicts another one or would be ignored.
    """
    require_options(asker, options, (*JOB, *READING, *LINKS))
    if isinstance(batch, Job) and job is None:
        batch, job = None, batch
    of_job = {name: value for name, value in options.items() if name in JOB}
    reading = {name: True for name in READING if switch(options.get(name, False), name)}
    links = {name: options[name] for name in LINKS if options.get(name) is not None}
    place = None if cluster is None else _cluster(cluster, links)
    if _is_module(model):
        own = job_of(batch, job, of_job, None)
        found = _profiled(model, example_inputs, own, place)
    else:
        found = _model(model, reading)
        own = job_of(batch, job, of_job, found)
    if place is None:
        place = _carried(model, reading, links) if "devices" not in links else _equal_devices(found, **links)
    return Question(found, place, own.of(found), "" if own.optimizer else _assumed(own.of(found), found))


def require_options(asker: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that a function does not have, with those like them."""
    for name in options:
        if name not in known:
            hinted = hint(name, known).removesuffix("?")
            raise InputError(f"{asker} has no option {name!r}{hinted}; options are {', '.join(known)}")


def _assumed(job: Job, model: Model) -> str:
    has = "has attention" if model.has_attention else "has no attention"
    return f"optimizer {job.optimizer}, assumed since the model {has}; name another with --optimizer"


def job_of(batch: Any, job: Any, options: Mapping[str, Any], model: Model | None = None) -> Job:
    """Return the job of a batch and options, or the one that is given in their place."""
    if job is None:
        if batch is None and (model is None or options.get("objective") != Objective.BOTTLENECK):
            raise InputError("say how many samples a step has: --batch N (batch=N in Python)")
        return Job(batch=default_batch(model) if batch is None and model is not None else batch, **options)
    own = require(job, Job)
    if batch is not None or options:
        beside = ", ".join([*(["batch"] if batch is not None else []), *options])
        raise InputError(f"job and {beside} are both given; write everything into the job, or leave the job out")
    return own


def _model(model: Any, reading: Mapping[str, bool]) -> Model:
    if is_code(model) and not reading:
        return counted_model(model)
    if isinstance(model, str | Path):
        return load_model(model, **reading)
    own = require(model, Model)
    if reading:
        raise InputError(f"{', '.join(reading)}: options for reading a file, and {own.name} is read already")
    return own


def is_code(model: Any) -> bool:
    """Whether this is the name of a workload, ``'module:function'`` or ``'hf:gpt2'``."""
    return isinstance(model, str) and re.fullmatch(r"hf:.+|[A-Za-z_][\w.]*:[A-Za-z_]\w*", model) is not None


def counted_model(name: str) -> Model:
    """Return a workload's model with sizes and operations and no profile, so that devices' peaks price it."""
    from pipeplan.frontend.profile import profile_workload

    return profile_workload(name, micro_batches=(1,), device="meta")


def _cluster(cluster: Any, links: Mapping[str, Any]) -> Cluster:
    if not isinstance(cluster, str | Path):
        require(cluster, Cluster)
    if links:
        name = cluster.name if isinstance(cluster, Cluster) else cluster
        raise InputError(_ignored(f"the cluster {name} has its own devices and links", links))
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)


def _carried(model: Any, reading: Mapping[str, bool], links: Mapping[str, Any]) -> Cluster:
    """Return the cluster that a workload file contains."""
    carried = load_carried_cluster(model, **reading) if isinstance(model, str | Path) and not is_code(model) else None
    if carried is None:
        raise InputError("say where to train: either a CLUSTER, or --devices N for N equal devices")
    if links:
        raise InputError(_ignored(f"{model} brings its own devices and links (--devices N replaces them)", links))
    return carried


def _equal_devices(model: Model, devices: Any, bandwidth: Any = None, latency: Any = 0) -> Cluster:
    whole(devices, "--devices", 1, MOST_DEVICES)
    if not model.profiles:
        raise InputError(
            f"--devices uses the speed of a profile, and {model.name} has none; name a CLUSTER, or measure the model "
            "first: pipeplan profile … -o model.yaml"
        )
    rate = None if bandwidth is None else parse_bandwidth(bandwidth)
    return Cluster.uniform(devices, DeviceKind(name=model.profiled_devices[0]), Link(rate, parse_time(latency)))


def _ignored(why: str, options: Mapping[str, Any]) -> str:
    named = " and ".join(f"--{name} {shown(value).strip(chr(39))}" for name, value in options.items())
    return f"{why}, so that {named} would be ignored; leave out one or the other"


def _is_module(model: Any) -> bool:
    """Whether this is a torch module; torch is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _profiled(module: Any, example_inputs: Any, job: Job, cluster: Cluster | None) -> Model:
    from pipeplan.frontend.profile import profile

    if example_inputs is None:
        raise InputError(
            f"a {type(module).__name__} is no Model yet: pass example_inputs, one batch, so that it can be profiled"
        )
    sizes = tuple(size for size in (1, 2, 4, 8, 16) if job.batch % size == 0)
    optimizer = job.optimizer or job.of(profile(module, example_inputs, micro_batches=(1,), device="meta")).optimizer
    name = None if cluster is None else cluster.devices[0].kind.name
    return profile(module, example_inputs, micro_batches=sizes, optimizer=optimizer, device_name=name)
