"""``pipeplan show``: a short summary of what `pipeplan list` names, or of a file."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.cli.base import Command

if TYPE_CHECKING:
    from pipeplan.core.cluster import Link


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``show``."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a name that `pipeplan list` prints, a file of any kind, module:function or hf:gpt2",
    )


def run(options: Namespace) -> int:
    """Print everything of that name."""
    from pipeplan.core.wording import fitted

    print(fitted("\n\n".join("\n".join(lines) for lines in _found(options.name))))
    return 0


def _found(name: str) -> Iterator[Iterator[str]]:
    """Yield the lines about each thing of that name, or about the file.

    Raises
    ------
    InputError
        If there is none, or the file is invalid.
    """
    from pipeplan.cli.list import KINDS, names
    from pipeplan.core.errors import InputError
    from pipeplan.core.wording import hint
    from pipeplan.io.load import file_kind
    from pipeplan.io.series import series_model
    from pipeplan.solve.question import is_code

    known = {kind: names(kind) for kind in KINDS}
    kinds = [kind for kind, own in known.items() if name in own]
    if not kinds and series_model(name) is not None:
        kinds = ["models"]
    if kinds:
        yield from (BY_NAME[kind](name) for kind in kinds)
    elif is_code(name):
        yield _model(name)
    elif Path(name).is_file():
        yield FILES[file_kind(Path(name))](name)
    else:
        every = [each for own in known.values() for each in own]
        raise InputError(
            f"nothing is called {name!r} (see pipeplan list), and there is no such file{hint(name, every)}"
        )


def _model(name: str) -> Iterator[str]:
    from pipeplan.io.load import load_model
    from pipeplan.solve.question import counted_model, is_code

    model = counted_model(name) if is_code(name) else load_model(name)
    yield model.headline
    yield from (f"  {note}" for note in model.notes)
    for tie in model.ties:
        yield f"  {' and '.join(tie.layers)} share weights"
    for profile in model.profiles:
        source = profile.provenance
        yield f"  profile: {profile.device}, micro-batch of {profile.micro_batch}; {source.how}, {source.source}"
    for own in model.slice_profiles:
        yield f"  slices: {own.device}, micro-batch of {own.micro_batch}, {own.tokens} tokens; first and last measured"
    yield model.table().printed()


def _cluster(name: str) -> Iterator[str]:
    from pipeplan.core.cluster import Overlap
    from pipeplan.io.load import load_cluster

    cluster = load_cluster(name)
    yield cluster.headline
    yield from (f"  {note}" for note in cluster.notes)
    for link in dict.fromkeys(node.link for node in cluster.nodes):
        yield f"  within a node: {_link(link)}"
    if cluster.network is not None:
        yield f"  between nodes: {_link(cluster.network)}, one card per node"
    waits = {Overlap.NONE: "wait while they send", Overlap.COPY: "compute while they send"}
    yield f"  devices {waits.get(cluster.overlap, 'send a tensor while they compute it')}"
    yield cluster.table().printed()


def _link(link: "Link") -> str:
    from pipeplan.core.units import format_time
    from pipeplan.io.schema import written_bandwidth

    if link.bandwidth is None:
        return "free"
    return f"{written_bandwidth(link.bandwidth)}, {format_time(link.latency)} latency"


def _device(name: str) -> Iterator[str]:
    from pipeplan.io.device_file import catalogue, device_fields
    from pipeplan.io.text import yaml_text

    yield yaml_text({name: device_fields(catalogue()[name])}).rstrip()


def _devices(path: str) -> Iterator[str]:
    from pipeplan.core.tabular import Table
    from pipeplan.io.device_file import read_devices

    rows = tuple((kind.name, kind.memory, kind.source) for kind in read_devices(Path(path)).values())
    yield Table({"device": "", "memory": "bytes", "source": ""}, rows).printed()


def _schedule(name: str) -> Iterator[str]:
    from pipeplan.cli.list import KINDS

    yield f"{name}, a schedule: {KINDS['schedules'](name)}"


def _balancer(name: str) -> Iterator[str]:
    from pipeplan.baselines.partitioners import PARTITIONERS
    from pipeplan.baselines.planners import PLANNERS

    partitions = name in PARTITIONERS
    found = PARTITIONERS[name] if partitions else PLANNERS[name]
    yield f"{name}, a {'partitioner' if partitions else 'planner'}: {found.summary}"
    yield f"  after {found.source}"


def _collective(name: str) -> Iterator[str]:
    from pipeplan.cli.list import KINDS

    yield f"{name}, a collective: {KINDS['collectives'](name)}"


def _experiment(name: str) -> Iterator[str]:
    from pipeplan.analysis.sweep.experiment import NamedModel
    from pipeplan.analysis.sweep.experiment_file import find_experiment, read_experiment
    from pipeplan.core.tabular import Table
    from pipeplan.core.wording import counted

    experiment = read_experiment(find_experiment(name))
    yield f"{experiment.name}: {counted(len(experiment.grids), 'grid')}, {counted(len(experiment.searches), 'search')}"
    for search in experiment.searches:
        yield f"  {search.backend}, {search.time:g} s per cell, gap {search.gap:g}, seed {search.seed}"
    yield from (f"  {note}" for note in experiment.notes)
    rows = tuple(
        (
            grid.part,
            ", ".join(m.source if isinstance(m, NamedModel) else f"{m.series}-{m.first} …" for m in grid.models),
            ", ".join(grid.clusters),
            ", ".join(f"{job.batch} {job.optimizer}" for job in grid.jobs),
        )
        for grid in experiment.grids
    )
    yield Table({"part": "", "models": "", "clusters": "", "batch and optimiser": ""}, rows).printed()


def _job(path: str) -> Iterator[str]:
    from pipeplan.io.job_file import job_data, read_job
    from pipeplan.io.text import yaml_text

    yield yaml_text(job_data(read_job(Path(path)))).rstrip()


def _plan(path: str) -> Iterator[str]:
    from pipeplan.core.plan import Plan
    from pipeplan.core.units import format_time

    plan = Plan.load(path)
    yield plan.headline
    figure = "step time" if plan.period is None else "period"
    yield f"{figure} {format_time(plan.value)}, {plan.proof}"
    yield plan.table().printed()


BY_NAME: Mapping[str, Callable[[str], Iterator[str]]] = {
    "models": _model,
    "clusters": _cluster,
    "devices": _device,
    "schedules": _schedule,
    "balancers": _balancer,
    "collectives": _collective,
    "experiments": _experiment,
}
FILES: Mapping[str, Callable[[str], Iterator[str]]] = {
    "model": _model,
    "cluster": _cluster,
    "devices": _devices,
    "job": _job,
    "plan": _plan,
    "experiment": _experiment,
}
"""Lines about a name of each kind, and about a file of each kind."""

command = Command(
    "show",
    "a short summary of a model, cluster, device, plan, … by its name or file",
    configure,
    run,
    "2x4-v100-10gbit",
)
