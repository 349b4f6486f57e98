"""Stages that hold copies of shared weights, and the reductions that sum their gradients.

::

    stage 0          stage 1     stage 2          both have the weights, their gradients and optimiser state;
    embedding  …     …           …  head          after their last backwards they sum the gradients, so that the
        ╰──────── one sum ──────────╯             copies stay equal

The sum is part of the stages' reductions (action R), which are one collective. They begin when the last replica of the
last of these stages has reached them. First the copies' gradients are summed over all replicas of all these stages,
then each stage sums the rest over its own. (The stage of the first layer mostly ends last anyway.)
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from pipeplan.core.schedule import Action, Kind, Schedule


def merge_overlapping(sets: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Merge sets that share a number into disjoint groups, sorted ascending."""
    groups: list[set[int]] = []
    for numbers in sets:
        new = set(numbers)
        meets = [group for group in groups if group & new]
        groups = [group for group in groups if not group & new] + [new.union(*meets)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def stages_holding(layers: Iterable[Hashable], stages: Sequence[Iterable[Hashable]]) -> tuple[int, ...]:
    """Return the stages that hold some of these layers."""
    wanted = set(layers)
    return tuple(s for s, own in enumerate(stages) if not wanted.isdisjoint(own))


def tied_stages(
    ties: Iterable[Iterable[Hashable]], stages: Sequence[Iterable[Hashable]]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of stages that reduce together, given the layers of each tie and of each stage."""
    return merge_overlapping(found for found in (stages_holding(layers, stages) for layers in ties) if len(found) > 1)


def with_reductions(schedule: Schedule, tied: Iterable[Iterable[int]]) -> Schedule:
    """Insert a reduction before the update of every stage in ``tied`` that has none."""
    wanted = {stage for group in tied for stage in group}
    if not wanted:
        return schedule
    return replace(schedule, orders=tuple(_with_reductions(order, wanted) for order in schedule.orders))


def _with_reductions(order: tuple[Action, ...], wanted: set[int]) -> tuple[Action, ...]:
    lacking = wanted - {action.stage for action in order if action.kind is Kind.REDUCE}
    found: list[Action] = []
    for action in order:
        if action.kind is Kind.UPDATE and action.stage in lacking:
            found.append(Action(Kind.REDUCE, action.stage))
        found.append(action)
    return tuple(found)
