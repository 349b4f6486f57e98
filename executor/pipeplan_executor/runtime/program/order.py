"""Owners of actions, and checks that a schedule's lists are complete. No torch here.

::

    rank 0   0F0 0F2 0B0 0B2 0R 0U      two replicas of stage 0, one of stage 1
    rank 1   0F1 0F3 0B1 0B3 0R 0U
    rank 2   1F0 1B0 1F1 1B1 …
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Action, Kind, Schedule

Owners: TypeAlias = Mapping[tuple[int, int], int]
"""The rank that runs each (stage, micro-batch)."""


def find_owners(schedule: Schedule, tied: Sequence[Sequence[int]] = ()) -> Owners:
    """Return the rank of each stage and micro-batch, after checking that one rank runs it once and completely.

    ``tied``: groups of stages that hold copies of the same weights, and so reduce together.

    Raises
    ------
    PlanError
        If actions are missing, doubled, spread over ranks or of a kind that cannot be run.
    """
    done: dict[tuple[int, int], list[tuple[Kind, int, int]]] = defaultdict(list)
    for rank, order in enumerate(schedule.orders):
        if not order:
            raise PlanError(f"rank {rank} has nothing to do; a plan gives every rank at least one stage")
        for action, count in Counter(order).items():
            if action.kind.per_micro_batch:
                done[action.stage, action.micro_batch] += [(action.kind, action.slice, rank)] * count
            elif count > 1:
                raise PlanError(f"{action} stands {count} times in the list of rank {rank}; once per step is enough")
    slices = schedule.slices
    for stage, ranks in enumerate(schedule.homes):
        for micro_batch in range(schedule.micro_batches):
            _check_micro_batch(stage, micro_batch, slices, done[stage, micro_batch])
        _check_once_per_step(stage, ranks, schedule, any(stage in group for group in tied))
    return {key: entries[0][2] for key, entries in done.items()}


def _check_micro_batch(stage: int, micro_batch: int, slices: int, found: list[tuple[Kind, int, int]]) -> None:
    ranks = sorted({rank for _, _, rank in found})
    for part in range(slices):
        kinds = sorted(kind for kind, number, _ in found if number == part)
        if kinds not in (sorted("FB"), sorted("FIW")):
            of = f", slice {part}" if slices > 1 else ""
            raise PlanError(
                f"stage {stage}, micro-batch {micro_batch}{of}: the schedule has {' '.join(kinds) or 'nothing'}; it "
                "needs one F, and one B or one I and one W"
            )
    if len(ranks) > 1:
        raise PlanError(
            f"stage {stage}, micro-batch {micro_batch}: its actions are spread over ranks {ranks}; one replica runs "
            "all actions of a micro-batch"
        )


def _check_once_per_step(stage: int, ranks: tuple[int, ...], schedule: Schedule, tied: bool) -> None:
    for kind in (Kind.REDUCE, Kind.UPDATE):
        lacking = [rank for rank in ranks if Action(kind, stage) not in schedule.orders[rank]]
        needed = kind is Kind.REDUCE and (tied or len(ranks) > 1)
        if lacking and (needed or len(lacking) < len(ranks)):
            raise PlanError(
                f"stage {stage} is on ranks {list(ranks)}, but {Action(kind, stage)} is missing on rank {lacking[0]}; "
                "every replica reduces and updates alike, and so does a stage that shares weights with another one"
            )
