"""Layers that share weights, in stages: which stages hold a copy, and which sum their gradients.

::

    stage 0          stage 1     stage 2          each of the two has the weights, their gradients and optimiser state;
    embedding  …     …           …  head          when both have run their last backward they sum the gradients, and
        ╰──────── one sum ──────────╯             so the copies stay alike

The sum is part of the stages' reductions (action R), which are one collective: they begin when the last replica of the
last of these stages has come to them. First the copies' gradients are summed over all replicas of all these stages,
then each stage sums the rest over its own. (The stage of the first layer mostly ends last anyway.)
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from pipeplan.core.schedule import Action, Kind, Schedule


def joined(sets: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Disjoint groups of those numbers that some set has together, each group and all of them ascending."""
    groups: list[set[int]] = []
    for numbers in sets:
        new = set(numbers)
        meets = [group for group in groups if group & new]
        groups = [group for group in groups if not group & new] + [new.union(*meets)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def holders(layers: Iterable[Hashable], stages: Sequence[Iterable[Hashable]]) -> tuple[int, ...]:
    """The stages that hold some of these layers."""
    wanted = set(layers)
    return tuple(s for s, own in enumerate(stages) if not wanted.isdisjoint(own))


def tied_stages(
    ties: Iterable[Iterable[Hashable]], stages: Sequence[Iterable[Hashable]]
) -> tuple[tuple[int, ...], ...]:
    """Groups of stages that reduce together, given the layers of each tie and of each stage."""
    return joined(found for found in (holders(layers, stages) for layers in ties) if len(found) > 1)


def with_sums(schedule: Schedule, tied: Iterable[Iterable[int]]) -> Schedule:
    """The schedule with a reduction ahead of the update of every stage in ``tied`` that has none."""
    wanted = {stage for group in tied for stage in group}
    if not wanted:
        return schedule
    return replace(schedule, orders=tuple(_with_sums(order, wanted) for order in schedule.orders))


def _with_sums(order: tuple[Action, ...], wanted: set[int]) -> tuple[Action, ...]:
    lacking = wanted - {action.stage for action in order if action.kind is Kind.REDUCE}
    found: list[Action] = []
    for action in order:
        if action.kind is Kind.UPDATE and action.stage in lacking:
            found.append(Action(Kind.REDUCE, action.stage))
        found.append(action)
    return tuple(found)
