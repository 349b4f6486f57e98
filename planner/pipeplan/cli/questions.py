"""Arguments that several commands share: the model, the cluster and the job."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pipeplan.cli.base import group


def add_questions(parser: ArgumentParser) -> None:
    """Add MODEL, CLUSTER and the options of the job."""
    for add in (_add_devices, _add_choices, _add_bytes, _add_replicas, _add_teams, _add_wishes, _add_reading):
        add(parser)


def _add_devices(parser: ArgumentParser) -> None:
    """Add the model, and where it is trained."""
    add = group(parser, "model and cluster").add_argument
    add(
        "model",
        metavar="MODEL",
        help="a name in datasets/, a file (ours, PipeDream graph.txt, …), module:function or hf:gpt2",
    )
    add("cluster", metavar="CLUSTER", nargs="?", help="a name in datasets/, or a file")
    add("--devices", type=number, metavar="N", help="N equal devices of the profile's own speed")
    add("--bandwidth", metavar="RATE", help="of the links between --devices, like 1.25GB/s; free if left out")
    add("--latency", metavar="TIME", help="of the links between --devices, like 50us")


def _add_choices(parser: ArgumentParser) -> None:
    """Add the samples of a step, and what the search chooses from and minimises."""
    add = group(parser, "batch and schedule").add_argument
    add("--batch", type=number, metavar="N", help="samples in one step")
    add("--micro-batches", metavar="N,N", help="numbers of micro-batches to consider")
    add("--depths", metavar="N,N", help="numbers of stages to consider")
    add("--schedules", metavar="NAME,NAME", help="schedule families to consider; any: every order too")
    add(
        "--objective",
        default="step",
        metavar="{step,period,bottleneck}",
        help="the time of a step; from step to step without a barrier; of an endless pipeline, per sample (step)",
    )
    add(
        "--staleness",
        type=number,
        default=0,
        metavar="{0,1}",
        help="1: gradients are applied while the next batch runs, one step late; with --objective period (0)",
    )
    add(
        "--overlap-reduction",
        action=BooleanOptionalAction,
        default=True,
        help="sum gradients in buckets while the last backward runs (the default), or all of them behind it",
    )


def _add_bytes(parser: ArgumentParser) -> None:
    """Add what a device keeps, how much it may, and what saves memory."""
    add = group(parser, "memory").add_argument
    add("--optimizer", help="sgd, momentum or adam (default: adam if the model has attention, else sgd)")
    add("--state-bytes", type=number, metavar="N", help="bytes of optimiser state kept for each parameter (its own)")
    add("--gradient-bytes", type=number, metavar="N", help="bytes of gradients kept for each parameter (its format's)")
    add("--memory", metavar="SIZE", help="what a device may use, like 16GiB, where that is less than it has")
    add("--reserve", metavar="SIZE", help="what of each device's memory is left free, like 5%% or 2GiB (none)")
    add(
        "--recompute",
        default="choose",
        metavar="{none,choose,full}",
        help="compute activations again in the backward: never, of those layers that it takes to fit, of all",
    )
    add(
        "--zero",
        metavar="N,N",
        help="levels of ZeRO to consider: replicas share out updates and the optimiser's state from 1 on, "
        "gradients from 2 on, parameters at 3 (default: every level that suits)",
    )


def _add_replicas(parser: ArgumentParser) -> None:
    """Add how devices share stages."""
    add = group(parser, "parallelism").add_argument
    add("--replicas", metavar="N,N", help="how many devices may share a stage; 1 is no replication")
    add("--equal-replicas", action="store_true", help="one number of replicas for all stages")
    add(
        "--regular",
        action="store_true",
        help="equal replicas, each stage inside a node or on whole ones; and their cost",
    )


def _add_teams(parser: ArgumentParser) -> None:
    """Add how devices share layers."""
    add = group(parser, "parallelism").add_argument
    add(
        "--teams",
        metavar="N,N",
        help="devices that may share every layer of a stage (tensor parallelism), like 1,2,4,8 "
        "(default: these, as far as a node has room; 1: no teams)",
    )
    add(
        "--slices",
        metavar="N,N",
        help="equal token slices of a sequence to consider (sequence chunks), like 1,4,16 (default: 1)",
    )
    add(
        "--chunks",
        metavar="N,N",
        help="stages of each device to consider (virtual stages; interleaved 1F1B, ZB-V, ...), like 1,2,4 "
        "(default: 1, and up to 12 for like blocks and few samples a step)",
    )
    add("--unlike-rounds", action="store_true", help="let rounds of several stages per device be cut unlike")
    add("--unlike-teams", action="store_true", help="let stages have teams of unlike sizes; takes longer to prove")
    add(
        "--sequence-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams also split along tokens what passes between layers (the default)",
    )
    add(
        "--context-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams also run matrix products and attention on parts of tokens, with whole weights (the default)",
    )
    add(
        "--mesh-axes",
        type=number,
        default=2,
        metavar="N",
        help="most axes of the meshes that teams form, 0 to 3 (2); several of teams over several nodes only",
    )
    add(
        "--strategy",
        default="",
        metavar="{2d,2.5d,3d}",
        help="how teams split products of matrices, along two or three axes of a mesh (any way)",
    )
    add(
        "--vocabulary-parallel",
        action=BooleanOptionalAction,
        default=True,
        help="let teams compute the loss on logits split along the vocabulary (the default)",
    )


def _add_wishes(parser: ArgumentParser) -> None:
    """Add wishes about the places of layers."""
    add = group(parser, "places of layers").add_argument
    add(
        "--order",
        default="search",
        metavar="{search,given}",
        help="of unlike devices along the pipeline; given: d0, d1, … as listed, none left out but the last ones",
    )
    add("--pin", action="append", default=[], metavar="LAYER=WHERE", help="to a device, like d3, or a kind of device")
    add("--together", action="append", default=[], metavar="LAYER,LAYER", help="in one stage")
    add("--no-cut-after", metavar="LAYER,LAYER", help="layers that may not end a stage")
    add("--intra-layer", action="store_true", help="neighbours may divide a layer (devices that stream, like FPGAs)")


def _add_reading(parser: ArgumentParser) -> None:
    """Add how files are read."""
    add = group(parser, "reading of files").add_argument
    add("--merge-misbooked", action="store_true", help="PipeDream GNMT: fuse layers with mixed times")
    add("--corrected", action="store_true", help="dnn-partitioning, Piper: corrected units of transfers")
    add("--extrapolate", action="store_true", help="allow micro-batches outside the measured sizes")


def add_limits(parser: ArgumentParser) -> None:
    """Add the search limits, the back end, the workers and the seed."""
    add = group(parser, "limits of the search").add_argument
    from pipeplan.core.options import BACKENDS

    add("--time", type=number, default=60.0, metavar="SECONDS", help="stop after this long (60)")
    add("--gap", type=number, default=0.0, help="stop at this relative gap, like 0.01 (0)")
    add("--backend", default="cpsat", metavar=f"{{{','.join(BACKENDS)}}}")
    add("--workers", type=number, default=2, metavar="N", help="threads of the solver (2)")
    add("--seed", type=number, default=0)


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
