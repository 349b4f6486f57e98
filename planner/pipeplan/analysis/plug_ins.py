"""`plugged_in`: partitioners, planners, schedule families and collectives of the caller, for the time of one call."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

from pipeplan.baselines.partitioners import PARTITIONERS, Partitioner
from pipeplan.baselines.planners import PLANNERS, BaselinePlanner
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.plug_ins import Registry, named
from pipeplan.costs.collectives import COLLECTIVES
from pipeplan.schedules import FAMILIES, Family

PlugIn = Partitioner | BaselinePlanner | Family | Callable[..., Any]
"""A function of (chain, micro-batches) is a partitioner, one of (model, cluster, job, micro-batch) a planner, and a
class of (replicas, link) a collective."""


@contextmanager
def plugged_in(plug_ins: Sequence[PlugIn]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Context in which they are listed with pipeplan's own; yields the names of heuristics, and of families.

    Raises
    ------
    InputError
        If one is none of these, has no name, or has that of another one.
    """
    if not isinstance(plug_ins, list | tuple):
        raise InputError(f"plug_ins is a list of functions or objects, not {shown(plug_ins)}")
    with ExitStack() as stack:
        heuristics, families = list[str](), list[str]()
        for each in plug_ins:
            name, registry = named(each), _registry(each)
            stack.enter_context(registry.handing(each, name))
            if registry is not COLLECTIVES:
                (families if registry is FAMILIES else heuristics).append(name)
        yield tuple(heuristics), tuple(families)


def _registry(found: PlugIn) -> Registry[Any]:
    if isinstance(found, Family | type):
        return FAMILIES if isinstance(found, Family) else COLLECTIVES
    if isinstance(found, Partitioner | BaselinePlanner):
        return PARTITIONERS if isinstance(found, Partitioner) else PLANNERS
    arguments = len(signature(found).parameters) if callable(found) else 0
    if arguments not in (2, 4):
        raise InputError(
            f"{shown(found)} cannot be plugged in: a partitioner is a function of (chain, micro_batches), a planner "
            "one of (model, cluster, job, micro_batch); or a Partitioner, a BaselinePlanner, a Family"
        )
    return PARTITIONERS if arguments == 2 else PLANNERS
