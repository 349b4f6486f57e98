"""Arguments that several commands share: the model, the cluster and the job."""

import re
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeplan.core.cluster import Cluster
    from pipeplan.core.job import Job
    from pipeplan.core.model import Model


def add_questions(parser: ArgumentParser) -> None:
    """Add MODEL, CLUSTER and the options of the job."""
    parser.add_argument("model", metavar="MODEL", help="a name in datasets/, or a file: ours, PipeDream graph.txt, ...")
    parser.add_argument("cluster", metavar="CLUSTER", nargs="?", help="a name in datasets/, or a file")
    parser.add_argument("--devices", type=int, metavar="N", help="N equal devices of the profile's own speed")
    parser.add_argument(
        "--bandwidth", metavar="RATE", help="of the links between --devices, like 1.25GB/s; free if left out"
    )
    parser.add_argument("--latency", metavar="TIME", help="of the links between --devices, like 50us")
    parser.add_argument("--batch", type=int, metavar="N", help="samples in one step")
    parser.add_argument("--micro-batches", metavar="N,N", help="numbers of micro-batches to consider")
    parser.add_argument("--depths", metavar="N,N", help="numbers of stages to consider")
    parser.add_argument("--schedules", metavar="NAME,NAME", help="schedule families to consider; any: every order too")
    parser.add_argument("--optimizer", default="sgd", help="sgd, momentum or adam")
    parser.add_argument(
        "--memory", metavar="SIZE", help="what a device may use, like 16GiB, where that is less than it has"
    )
    parser.add_argument(
        "--reserve", metavar="SIZE", help="what of each device's memory is left free, like 5%% or 2GiB (none)"
    )
    parser.add_argument("--replicas", metavar="N,N", help="how many devices may share a stage; 1 is no replication")
    parser.add_argument("--equal-replicas", action="store_true", help="one number of replicas for all stages")
    parser.add_argument(
        "--recompute",
        default="choose",
        choices=("none", "choose", "full"),
        help="compute activations again in the backward: never, of those layers that it takes to fit, of all",
    )
    parser.add_argument(
        "--zero",
        metavar="N,N",
        help="levels of ZeRO to consider: replicas share out updates and the optimiser's state from 1 on, "
        "gradients from 2 on, parameters at 3 (default: every level that suits)",
    )
    parser.add_argument(
        "--teams",
        metavar="N,N",
        help="devices that may share every layer of a stage (tensor parallelism), like 1,2,4,8 (default: 1)",
    )
    parser.add_argument(
        "--unlike-teams", action="store_true", help="let stages have teams of unlike sizes; takes longer to prove"
    )
    parser.add_argument(
        "--sequence-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams also split along tokens what passes between layers (the default)",
    )
    parser.add_argument(
        "--context-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams also run matrix products and attention on parts of tokens, with whole weights (the default)",
    )
    parser.add_argument(
        "--mesh-axes",
        type=int,
        default=2,
        metavar="N",
        help="most axes of the meshes that teams over several nodes form, 1 to 3 (2)",
    )
    parser.add_argument(
        "--vocabulary-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams compute the loss on logits split along the vocabulary (the default)",
    )
    parser.add_argument(
        "--overlap-reduction",
        action=BooleanOptionalAction,
        default=True,
        help="sum gradients in buckets while the last backward runs (the default), or all of them behind it",
    )
    parser.add_argument(
        "--order",
        default="search",
        choices=("search", "given"),
        help="of unlike devices along the pipeline; given: d0, d1, … as listed, none left out but the last ones",
    )
    parser.add_argument(
        "--pin", action="append", default=[], metavar="LAYER=WHERE", help="to a device, like d3, or a kind of device"
    )
    parser.add_argument("--together", action="append", default=[], metavar="LAYER,LAYER", help="in one stage")
    parser.add_argument("--no-cut-after", metavar="LAYER,LAYER", help="layers that may not end a stage")
    parser.add_argument(
        "--intra-layer", action="store_true", help="neighbours may divide a layer (devices that stream, like FPGAs)"
    )
    parser.add_argument("--objective", default="step", choices=("step", "period", "bottleneck"))
    parser.add_argument("--merge-misbooked", action="store_true", help="PipeDream GNMT: fuse layers with mixed times")
    parser.add_argument(
        "--corrected", action="store_true", help="dnn-partitioning, Piper: corrected units of transfers"
    )
    parser.add_argument("--extrapolate", action="store_true", help="allow micro-batches outside the measured sizes")


def add_limits(parser: ArgumentParser) -> None:
    """Add the search limits, the back end, the workers and the seed."""
    from pipeplan.core.options import BACKENDS

    parser.add_argument("--time", type=float, default=60.0, metavar="SECONDS", help="stop after this long (60)")
    parser.add_argument("--gap", type=float, default=0.0, help="stop at this relative gap, like 0.01 (0)")
    parser.add_argument("--backend", default="cpsat", choices=BACKENDS)
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="threads of the solver (2)")
    parser.add_argument("--seed", type=int, default=0)


LIMITS = ("time", "gap", "backend", "workers", "seed")
"""Names of the options of `add_limits`."""


def limits(options: Namespace) -> dict[str, Any]:
    """The options of `add_limits` as keyword arguments of `pipeplan.solve`.

    Raises
    ------
    InputError
        If a value is not valid, or the back end would ignore it.
    """
    from pipeplan.core.options import asked_limits

    asked_limits(options.time, options.gap, options.backend, options.workers, options.seed)
    if options.backend == "exact":
        unheeded = ("workers",) if getattr(options, "robust", None) else ("workers", "seed")
        refuse_given(options, unheeded, "--backend exact runs in one thread and draws nothing")
    return {
        "time_limit": options.time,
        "gap": options.gap,
        "backend": options.backend,
        "workers": options.workers,
        "seed": options.seed,
    }


def given(options: Namespace, names: Iterable[str]) -> list[str]:
    """Those of the options that differ from their defaults, as a user writes them: ``['--depths 2']``."""
    values = [(name, getattr(options, name, None)) for name in names]
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {_written(value)}")
        for name, value in values
        if value != options.defaults.get(name)
    ]


def refuse_given(options: Namespace, names: Iterable[str], why: str) -> None:
    """Refuse options that would be ignored.

    Raises
    ------
    InputError
        Naming them, and the reason ``why`` they would be ignored.
    """
    from pipeplan.core.errors import InputError

    found = given(options, names)
    if found:
        raise InputError(f"{why}, so that {' and '.join(found)} would be ignored; leave out one or the other")


def _written(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_model(options: Namespace) -> "Model":
    """Read the model that MODEL names."""
    from pipeplan.io.load import load_model

    return load_model(options.model, **_reading(options))


def read_cluster(options: Namespace, model: "Model") -> "Cluster":
    """Read the cluster named by CLUSTER, contained in the workload, or described by ``--devices``."""
    from pipeplan.core.cluster import Cluster, DeviceKind, Link
    from pipeplan.core.errors import InputError
    from pipeplan.core.units import parse_bandwidth, parse_time
    from pipeplan.io.load import load_carried_cluster, load_cluster

    links = ("bandwidth", "latency")
    if options.cluster is not None:
        whose = f"the cluster {options.cluster} has its own devices and links"
        refuse_given(options, ("devices", *links), whose)
        return load_cluster(options.cluster)
    if options.devices is None:
        carried = load_carried_cluster(options.model, **_reading(options))
        if carried is None:
            raise InputError("say where to train: either a CLUSTER, or --devices N for N equal devices")
        refuse_given(options, links, f"{options.model} brings its own devices and links (--devices N replaces them)")
        return carried
    if not model.profiles:
        raise InputError(f"--devices uses the speed of a profile, and {model.name} has none; name a CLUSTER")
    link = Link(
        bandwidth=None if options.bandwidth is None else parse_bandwidth(options.bandwidth),
        latency=0 if options.latency is None else parse_time(options.latency),
    )
    return Cluster.uniform(options.devices, DeviceKind(name=model.profiled_devices[0]), link)


def read_job(options: Namespace, model: "Model") -> "Job":
    """Build the job that the options describe."""
    from pipeplan.core.errors import InputError
    from pipeplan.core.job import Job, Objective, Order, Recompute, default_batch
    from pipeplan.core.units import parse_bytes, parse_reserve

    if options.batch is None and options.objective != "bottleneck":
        raise InputError("say how many samples a step has: --batch N")
    return Job(
        batch=default_batch(model) if options.batch is None else options.batch,
        micro_batches=numbers(options.micro_batches, "--micro-batches"),
        depths=numbers(options.depths, "--depths"),
        schedules=names(options.schedules),
        optimizer=options.optimizer,
        memory=None if options.memory is None else parse_bytes(options.memory),
        reserve=0 if options.reserve is None else parse_reserve(options.reserve),
        objective=Objective(options.objective),
        extrapolate=options.extrapolate,
        replicas=numbers(options.replicas, "--replicas"),
        equal_replicas=options.equal_replicas,
        recompute=Recompute(options.recompute),
        zero=numbers(options.zero, "--zero"),
        teams=numbers(options.teams, "--teams"),
        unlike_teams=options.unlike_teams,
        sequence_parallel=options.sequence_parallel,
        context_parallel=options.context_parallel,
        mesh_axes=options.mesh_axes,
        vocabulary_parallel=options.vocabulary_parallel,
        overlap_reduction=options.overlap_reduction,
        intra_layer=options.intra_layer,
        order=Order(options.order),
        together=tuple(names(text) for text in options.together),
        no_cut_after=names(options.no_cut_after),
        pin=tuple(_pin(text) for text in options.pin),
    )


def _reading(options: Namespace) -> dict[str, bool]:
    """Keyword arguments of the importer that are set; importers without such an option never get it."""
    chosen = {"merge_misbooked": options.merge_misbooked, "corrected": options.corrected}
    return {name: True for name, on in chosen.items() if on}


def names(text: str | None) -> tuple[str, ...]:
    """Split names at commas, as in ``conv1,conv2``."""
    return () if text is None else tuple(text.split(","))


def _pin(text: str) -> tuple[str, str]:
    from pipeplan.core.errors import InputError

    layer, found, where = text.rpartition("=")
    if not found or not layer or not where:
        raise InputError(f"--pin {text}: write a layer and where it must lie, like head=d3 or head=v100-16gb")
    return layer, where


def numbers(text: str | None, option: str) -> tuple[int, ...]:
    """Parse whole numbers with commas between, as in ``4,8,16``."""
    from pipeplan.core.errors import InputError
    from pipeplan.core.figures import shown

    if text is None:
        return ()
    if not re.fullmatch(r"-?[0-9]{1,30}(,-?[0-9]{1,30})*", text):
        raise InputError(f"{option} {shown(text)}: write numbers with commas between, like 4,8,16")
    return tuple(map(int, text.split(",")))
