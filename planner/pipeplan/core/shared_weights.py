"""Stages that hold copies of shared weights, and the reductions that sum their gradients.

::

    stage 0          stage 1     stage 2          both have the weights, their gradients and optimiser state;
    embedding  …     …           …  head          after their last backwards they sum the gradients, so that the
        ╰──────── one sum ──────────╯             copies stay equal

Of several stages on the same ranks only the first one keeps the weights. The others use them there, add their gradients
to its own and have nothing to sum.

The sum is part of the stages' reductions (action R), which are one collective. They begin when the last replica of the
last of these stages has reached them. First the copies' gradients are summed over all replicas of all these stages,
then each stage sums the rest over its own. (The stage of the first layer mostly ends last anyway.)
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

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


def keepers(stages: Iterable[int], placement: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return those of some stages that keep what all of them hold: of several on the same ranks the first one."""
    first: dict[tuple[int, ...], int] = {}
    for stage in stages:
        first.setdefault(tuple(sorted(placement[stage])), stage)
    return tuple(first.values())


def tied_stages(
    ties: Iterable[Iterable[Hashable]], stages: Sequence[Iterable[Hashable]], placement: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of stages that reduce together, given the layers of each tie and of each stage."""
    kept = (keepers(stages_holding(layers, stages), placement) for layers in ties)
    return merge_overlapping(found for found in kept if len(found) > 1)


def with_reductions(schedule: Schedule, tied: Iterable[Iterable[int]]) -> Schedule:
    """Add reductions of all stages in ``tied``, and bring those of each rank into the order of `closing`.

    Reductions are sorted by the first stage of each collective, an order that all ranks share: then those of different
    groups do not wait for each other.
    """
    groups = [tuple(group) for group in tied]
    first = {stage: min(group) for group in groups for stage in group}
    if not first:
        return schedule
    return schedule.each_list(partial(_with_reductions, first=first))


def _with_reductions(order: tuple[Action, ...], first: dict[int, int]) -> tuple[Action, ...]:
    updates = [action for action in order if action.kind is Kind.UPDATE]
    reducing = {action.stage for action in order if action.kind is Kind.REDUCE}
    reducing |= {action.stage for action in updates if action.stage in first}
    passes = [action for action in order if action.kind not in (Kind.REDUCE, Kind.UPDATE)]
    ends = sorted(reducing, key=lambda stage: (first.get(stage, stage), stage))
    return (*passes, *(Action(Kind.REDUCE, stage) for stage in ends), *updates)
