"""Arguments that several commands share: the model, the cluster and the job."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def add_questions(parser: ArgumentParser) -> None:
    """Add MODEL, CLUSTER and the options of the job."""
    for add in (_add_devices, _add_choices, _add_bytes, _add_replicas, _add_teams, _add_wishes, _add_reading):
        add(parser)


def _add_devices(parser: ArgumentParser) -> None:
    """Add the model, and where it is trained."""
    parser.add_argument("model", metavar="MODEL", help="a name in datasets/, or a file: ours, PipeDream graph.txt, ...")
    parser.add_argument("cluster", metavar="CLUSTER", nargs="?", help="a name in datasets/, or a file")
    parser.add_argument("--devices", type=number, metavar="N", help="N equal devices of the profile's own speed")
    parser.add_argument(
        "--bandwidth", metavar="RATE", help="of the links between --devices, like 1.25GB/s; free if left out"
    )
    parser.add_argument("--latency", metavar="TIME", help="of the links between --devices, like 50us")


def _add_choices(parser: ArgumentParser) -> None:
    """Add the samples of a step, and what the search chooses from."""
    parser.add_argument("--batch", type=number, metavar="N", help="samples in one step")
    parser.add_argument("--micro-batches", metavar="N,N", help="numbers of micro-batches to consider")
    parser.add_argument("--depths", metavar="N,N", help="numbers of stages to consider")
    parser.add_argument("--schedules", metavar="NAME,NAME", help="schedule families to consider; any: every order too")


def _add_bytes(parser: ArgumentParser) -> None:
    """Add what a device keeps, and how much it may."""
    parser.add_argument(
        "--optimizer", help="sgd, momentum or adam (default: adam if the model has attention, else sgd)"
    )
    parser.add_argument(
        "--state-bytes", type=number, metavar="N", help="bytes of optimiser state kept for each parameter (its own)"
    )
    parser.add_argument(
        "--gradient-bytes", type=number, metavar="N", help="bytes of gradients kept for each parameter (its format's)"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="what a device may use, like 16GiB, where that is less than it has"
    )
    parser.add_argument(
        "--reserve", metavar="SIZE", help="what of each device's memory is left free, like 5%% or 2GiB (none)"
    )


def _add_replicas(parser: ArgumentParser) -> None:
    """Add how devices share stages, and what they recompute."""
    parser.add_argument("--replicas", metavar="N,N", help="how many devices may share a stage; 1 is no replication")
    parser.add_argument("--equal-replicas", action="store_true", help="one number of replicas for all stages")
    parser.add_argument(
        "--regular",
        action="store_true",
        help="equal replicas, each stage inside a node or on whole ones; and their cost",
    )
    parser.add_argument(
        "--recompute",
        default="choose",
        metavar="{none,choose,full}",
        help="compute activations again in the backward: never, of those layers that it takes to fit, of all",
    )
    parser.add_argument(
        "--zero",
        metavar="N,N",
        help="levels of ZeRO to consider: replicas share out updates and the optimiser's state from 1 on, "
        "gradients from 2 on, parameters at 3 (default: every level that suits)",
    )


def _add_teams(parser: ArgumentParser) -> None:
    """Add how devices share layers."""
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
        type=number,
        default=2,
        metavar="N",
        help="most axes of the meshes that teams form, 0 to 3 (2); several of teams over several nodes only",
    )
    parser.add_argument(
        "--strategy",
        default="",
        metavar="{2d,2.5d,3d}",
        help="how teams split products of matrices, along two or three axes of a mesh (any way)",
    )
    parser.add_argument(
        "--vocabulary-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams compute the loss on logits split along the vocabulary (the default)",
    )


def _add_wishes(parser: ArgumentParser) -> None:
    """Add wishes about sums, the places of layers, and the objective."""
    parser.add_argument(
        "--overlap-reduction",
        action=BooleanOptionalAction,
        default=True,
        help="sum gradients in buckets while the last backward runs (the default), or all of them behind it",
    )
    parser.add_argument(
        "--order",
        default="search",
        metavar="{search,given}",
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
    parser.add_argument("--objective", default="step", metavar="{step,period,bottleneck}")


def _add_reading(parser: ArgumentParser) -> None:
    """Add how files are read."""
    parser.add_argument("--merge-misbooked", action="store_true", help="PipeDream GNMT: fuse layers with mixed times")
    parser.add_argument(
        "--corrected", action="store_true", help="dnn-partitioning, Piper: corrected units of transfers"
    )
    parser.add_argument("--extrapolate", action="store_true", help="allow micro-batches outside the measured sizes")


def add_limits(parser: ArgumentParser) -> None:
    """Add the search limits, the back end, the workers and the seed."""
    from pipeplan.core.options import BACKENDS

    parser.add_argument("--time", type=number, default=60.0, metavar="SECONDS", help="stop after this long (60)")
    parser.add_argument("--gap", type=number, default=0.0, help="stop at this relative gap, like 0.01 (0)")
    parser.add_argument("--backend", default="cpsat", metavar=f"{{{','.join(BACKENDS)}}}")
    parser.add_argument("--workers", type=number, default=2, metavar="N", help="threads of the solver (2)")
    parser.add_argument("--seed", type=number, default=0)


def number(text: str) -> int | float | str:
    """Return a number; other text stays as it is, for the check that names what is wrong with it."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


LIMITS = ("time", "gap", "backend", "workers", "seed")
"""Names of the options of `add_limits`."""


def limits(options: Namespace) -> dict[str, Any]:
    """The options of `add_limits` as keyword arguments of `pipeplan.solve`."""
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


def question(options: Namespace) -> dict[str, Any]:
    """The options of `add_questions` as keyword arguments of `pipeplan.solve`."""
    from pipeplan.solve.question import JOB, LINKS, READING

    names = ("model", "cluster", "batch", *JOB, *LINKS, *READING)
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def searched(options: Namespace) -> tuple[str, str]:
    """What is searched, and what its values are, for lines of progress: ``('gnmt-8 on 2-cpu', 'step time')``."""
    from pathlib import PurePath

    from pipeplan.core.job import Objective

    place = PurePath(options.cluster).stem if options.cluster else f"{options.devices or 'its own'} devices"
    figure = next((each.figure for each in Objective if each == options.objective), Objective.STEP.figure)
    return f"{PurePath(options.model).stem} on {place}", figure
