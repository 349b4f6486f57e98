"""Checks of a schedule: every action once, each on the device that owns it, and lists that can run to the end.

::

    stage 1 on devices 2 and 3          device 2: 1F0 1F2 1B0 1B2 1R 1U
                                        device 3: 1F1 1B1 1R 1U            micro-batch m belongs to replica m mod 2
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence, Set

from pipeplan.core.collector import without_collector
from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate.deadlock import backwards_too_early, deadlocks
from pipeplan.core.validate.lanes import first_lane, like_lanes

Placement = Sequence[Sequence[int]]
"""The devices of each stage, one per replica."""

SHOWN = 40
"""Largest number of lines in an error; the rest is counted."""


@without_collector()
def validate_schedule(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    placement: Placement | None = None,
    tied: Sequence[Sequence[int]] = (),
) -> None:
    """Check that a schedule runs every micro-batch through every stage and back, without a deadlock.

    The lists are replayed on one-lane devices. Two lanes wait for less than one, so an order that passes runs on
    either, as every schedule must.

    Parameters
    ----------
    placement : sequence of sequence of int, optional
        The devices of each stage, one per replica; by default one device per stage, the one with most of its actions.
    tied : sequence of sequence of int
        Groups of stages that hold copies of the same weights and reduce together.

    Raises
    ------
    PlanError
        Listing every violation: actions that are missing, doubled, unknown or on a wrong device, a joined backward
        beside a split one, a backward before its forward, and the waiting actions of a deadlock.
    """
    placement = likely_placement(schedule, stages) if placement is None else placement
    lanes = like_lanes(schedule, placement)
    if lanes > 1 and micro_batches % lanes == 0:
        replicated = ((stage,) for stage, own in enumerate(placement) if len(own) > 1)  # these need a reduction
        lane, own = first_lane(schedule, placement, lanes)
        if not any(_violations(lane, stages, micro_batches // lanes, own, (*replicated, *tied))):
            return
    refuse(f"the schedule {schedule.family!r}", _violations(schedule, stages, micro_batches, placement, tied))


@without_collector()
def validate_order(schedule: Schedule, tied: Sequence[Sequence[int]] = (), sharded: bool = False) -> None:
    """Check that the lists of a complete schedule can run to the end, wherever its replicas are.

    Parameters
    ----------
    tied : sequence of sequence of int
        Groups of stages that hold copies of the same weights and reduce together.
    sharded : bool
        The replicas of a stage update a shard each and exchange them, so an update is one collective of all of them.

    Raises
    ------
    PlanError
        Listing every backward before its forward, or the waiting actions of a deadlock.
    """
    early = [*backwards_too_early(schedule)]
    refuse(f"the schedule {schedule.family!r}", early or deadlocks(schedule, tied, sharded))


def _violations(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    placement: Placement,
    tied: Sequence[Sequence[int]],
) -> Iterator[str]:
    found = [
        *misplaced(schedule, stages, micro_batches, placement),
        *missing_and_doubled(schedule, stages, micro_batches, placement, tied),
        *backwards_too_early(schedule),
    ]
    yield from found
    if not found:  # an incomplete schedule deadlocks for a reason that is already reported
        yield from deadlocks(schedule, tied)


def likely_placement(schedule: Schedule, stages: int) -> Placement:
    """Return one device per stage: the one that holds most of its actions."""
    counts: dict[int, Counter[int]] = {stage: Counter() for stage in range(stages)}
    for device, order in enumerate(schedule.orders):
        for action in order:
            counts.setdefault(action.stage, Counter())[device] += 1
    return [[device for device, _ in counts[stage].most_common(1)] for stage in range(stages)]


def misplaced(schedule: Schedule, stages: int, micro_batches: int, placement: Placement) -> Iterator[str]:
    """Yield actions of stages or micro-batches that do not exist, and actions on a device that does not own them."""
    homes = [frozenset(row) for row in placement]
    for device, order in enumerate(schedule.orders):
        for action in order:
            stage = action.stage
            if not 0 <= action.stage < stages:
                yield f"{action} on device {device}: there are stages 0 to {stages - 1} only"
            elif not 0 <= action.micro_batch < micro_batches:
                yield f"{action} on device {device}: there are micro-batches 0 to {micro_batches - 1} only"
            elif action.kind.per_micro_batch:
                owner = placement[stage][action.micro_batch % len(placement[stage])]
                if device != owner:
                    what = f"stage {stage}" if len(placement[stage]) == 1 else f"its replica of stage {stage}"
                    yield f"{action} stands on device {device}, but device {owner} owns {what}; move it there"
            elif device not in homes[stage]:
                owners = " and ".join(map(str, placement[stage]))
                yield f"{action} stands on device {device}, but stage {stage} is on device {owners}; drop it"


def missing_and_doubled(
    schedule: Schedule, stages: int, micro_batches: int, placement: Placement, tied: Sequence[Sequence[int]] = ()
) -> Iterator[str]:
    """Yield actions that are doubled or missing, and micro-batches with two kinds of backward."""
    counts = Counter(action for action in schedule.actions() if action.kind.per_micro_batch)
    for action, count in counts.items():
        if count > 1:
            yield f"{action} is there {count} times; keep one"
    slices = 1 + max((action.slice for action in counts), default=0)
    for stage in range(stages):
        for micro_batch in range(micro_batches):
            for part in range(slices):
                if not _has_joined_pair(counts, stage, micro_batch, part):
                    yield from _pass_faults(counts, stage, micro_batch, part)
    yield from _once_per_step(schedule, stages, placement, {stage for group in tied for stage in group})


def _once_per_step(schedule: Schedule, stages: int, placement: Placement, tied: Set[int]) -> Iterator[str]:
    """Yield faults of updates and reductions.

    If one stage updates, all do. Replicas and copies of shared weights sum their gradients.
    """
    counts = Counter(
        (action, device)
        for device, order in enumerate(schedule.orders)
        for action in order
        if not action.kind.per_micro_batch
    )
    for (action, device), count in counts.items():
        if count > 1:
            yield f"{action} is there {count} times on device {device}; keep one"
    updates = {action.stage for action, _ in counts if action.kind is Kind.UPDATE}
    reduces = {action.stage for action, _ in counts if action.kind is Kind.REDUCE}
    for stage in range(stages):
        homes = placement[stage]
        update, reduce = Action(Kind.UPDATE, stage), Action(Kind.REDUCE, stage)
        if updates and stage not in updates:
            yield f"stage {stage} has no update, while stage {min(updates)} has one; add {update}"
        elif updates:
            for device in (device for device in homes if (update, device) not in counts):
                yield f"stage {stage} has no update on device {device}, where it has a replica; add {update}"
        if len(homes) > 1 or stage in reduces or stage in tied:
            has = f"has {len(homes)} replicas" if stage not in tied else "shares weights with other stages"
            for device in (device for device in homes if (reduce, device) not in counts):
                yield f"stage {stage} {has} and no reduction on device {device}; add {reduce}"


def _has_joined_pair(counts: Container[object], stage: int, micro_batch: int, part: int) -> bool:
    """Return whether there are a forward and a joined backward and nothing else, the common case."""
    place = (stage, micro_batch, part)
    split = (Kind.INPUT_GRADIENT, *place) in counts or (Kind.WEIGHT_GRADIENT, *place) in counts
    return (Kind.FORWARD, *place) in counts and (Kind.BACKWARD, *place) in counts and not split


def _pass_faults(counts: Counter[Action], stage: int, micro_batch: int, part: int) -> Iterator[str]:
    """Yield a missing forward or backward, and a split backward beside a joined one."""
    forward, joined, inputs, weights = (
        Action(kind, stage, micro_batch, part)
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    )
    if forward not in counts:
        yield f"{forward} is missing"
    if joined in counts:
        for split in (inputs, weights):
            if split in counts:
                yield f"{split} stands beside the joined backward {joined}; drop one of them"
    elif inputs not in counts and weights not in counts:
        yield f"{joined} is missing (or {inputs} and {weights})"
    elif inputs not in counts:
        yield f"{weights} has no {inputs}"
    elif weights not in counts:
        yield f"{inputs} has no {weights}"


def refuse(what: str, violations: Iterable[str]) -> None:
    """Raise a PlanError that lists the violations, if there are any."""
    found = list(violations)
    if found:
        more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        count = "1 rule" if len(found) == 1 else f"{len(found)} rules"
        raise PlanError(f"{what} breaks {count}:\n  " + "\n  ".join(found[:SHOWN]) + more)
