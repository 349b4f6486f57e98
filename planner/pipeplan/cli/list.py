"""``pipeplan list``: names of models, clusters, devices, schedules, balancers, collectives and experiments."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from functools import partial

from pipeplan.cli.base import Command


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``list``."""
    parser.add_argument("kind", metavar="KIND", choices=tuple(KINDS), help=", ".join(KINDS))
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Print names, each with a line that describes it."""
    from pipeplan.core.tabular import Table
    from pipeplan.io.series import SERIES

    rows = [(name, KINDS[options.kind](name)) for name in names(options.kind)]
    if options.kind == "models":
        rows += [(f"{name}-N", "made for any number of layers N") for name in SERIES]
    if options.json:
        print(json.dumps(dict(rows), indent=2))
    else:
        print(Table({options.kind: "", "": ""}, tuple(rows), most=len(rows)).printed())
    return 0


def names(kind: str) -> tuple[str, ...]:
    """Return the names of one of `KINDS`."""
    from pipeplan.baselines.partitioners import PARTITIONERS
    from pipeplan.baselines.planners import PLANNERS
    from pipeplan.costs.collectives import COLLECTIVES
    from pipeplan.io.datasets import shipped
    from pipeplan.io.device_file import catalogue
    from pipeplan.schedules import FAMILIES, PLACED, SLICED

    if kind in ("models", "clusters", "experiments"):
        return tuple(shipped(kind))
    return {
        "devices": (*catalogue(),),
        "schedules": (*FAMILIES, *SLICED, *PLACED),
        "balancers": (*PARTITIONERS, *PLANNERS),
        "collectives": (*COLLECTIVES,),
    }[kind]


def _model(name: str) -> str:
    from pipeplan.io.load import load_model

    return _without_name(load_model(name).headline)


def _cluster(name: str) -> str:
    from pipeplan.io.load import load_cluster

    return _without_name(load_cluster(name).headline)


def _device(name: str) -> str:
    from pipeplan.core.units import format_bytes
    from pipeplan.io.device_file import catalogue

    kind = catalogue()[name]
    return f"{'no memory limit' if kind.memory is None else format_bytes(kind.memory)}; {kind.source.partition(';')[0]}"


def _schedule(name: str) -> str:
    from pipeplan.schedules import FAMILIES, PLACED, SLICED

    if name in SLICED:
        return f"{SLICED[name]} (with --slices)"
    return FAMILIES[name].summary if name in FAMILIES else f"{PLACED[name].summary} (with --chunks)"


def _balancer(name: str) -> str:
    from pipeplan.baselines.partitioners import PARTITIONERS
    from pipeplan.baselines.planners import PLANNERS

    return PARTITIONERS[name].summary if name in PARTITIONERS else PLANNERS[name].summary


def _collective(name: str) -> str:
    from pipeplan.core.plug_ins import summary_of
    from pipeplan.costs.collectives import COLLECTIVES

    found = COLLECTIVES[name]
    return str(found.keywords["why"]) if isinstance(found, partial) else summary_of(found)


def _experiment(name: str) -> str:
    from pipeplan.analysis.sweep.experiment_file import find_experiment, read_experiment

    return "; ".join(dict.fromkeys(grid.part for grid in read_experiment(find_experiment(name)).grids))


def _without_name(headline: str) -> str:
    return headline.partition(": ")[2]


KINDS: Mapping[str, Callable[[str], str]] = {
    "models": _model,
    "clusters": _cluster,
    "devices": _device,
    "schedules": _schedule,
    "balancers": _balancer,
    "collectives": _collective,
    "experiments": _experiment,
}
"""What can be listed, and the line about each name."""

command = Command(
    "list",
    "names of models, clusters, devices, schedules, balancers, collectives, experiments",
    configure,
    run,
    "models",
)
