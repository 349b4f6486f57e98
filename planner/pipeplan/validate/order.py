"""Is a schedule complete, and does it end?"""

from collections.abc import Iterator, Sequence

from pipeplan.collector import without_collector
from pipeplan.schedule import Schedule
from pipeplan.validate.inventory import Placement, likely_placement, missing_and_doubled, strayed
from pipeplan.validate.play import backwards_too_early, stuck
from pipeplan.validate.violations import refuse


@without_collector()
def validate_schedule(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    placement: Placement | None = None,
    tied: Sequence[Sequence[int]] = (),
) -> None:
    """Check that a schedule takes every micro-batch through every stage and back, and ends.

    The lists are played as one-lane devices would play them. Two lanes wait for less than one, so an order that passes
    runs on either, as every schedule must.

    Parameters
    ----------
    placement : sequence of sequence of int, optional
        The devices of each stage, one a replica; without it every stage has one, that which holds most of it.
    tied : sequence of sequence of int
        Groups of stages that hold copies of the same weights and reduce together.

    Raises
    ------
    PlanError
        Listing every violation: actions that are missing, doubled, unknown or on another device than theirs, a joined
        backward beside a split one, a backward ahead of its forward, and who waits for whom in a deadlock.
    """
    refuse(f"the schedule {schedule.family!r}", _violations(schedule, stages, micro_batches, placement, tied))


@without_collector()
def validate_order(schedule: Schedule, tied: Sequence[Sequence[int]] = (), sharded: bool = False) -> None:
    """Check that the lists of a complete schedule can be played to the end, wherever its replicas are.

    Parameters
    ----------
    tied : sequence of sequence of int
        Groups of stages that hold copies of the same weights and reduce together.
    sharded : bool
        The replicas of a stage update a share each and exchange them, so an update is one act of all of them.

    Raises
    ------
    PlanError
        Listing every backward ahead of its forward, or who waits for whom in a deadlock.
    """
    early = [*backwards_too_early(schedule)]
    refuse(f"the schedule {schedule.family!r}", early or stuck(schedule, tied, sharded))


def _violations(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    placement: Placement | None,
    tied: Sequence[Sequence[int]],
) -> Iterator[str]:
    placement = likely_placement(schedule, stages) if placement is None else placement
    found = [
        *strayed(schedule, stages, micro_batches, placement),
        *missing_and_doubled(schedule, stages, micro_batches, placement, tied),
        *backwards_too_early(schedule),
    ]
    yield from found
    if not found:  # an incomplete schedule gets stuck for a reason that is already told
        yield from stuck(schedule, tied)
