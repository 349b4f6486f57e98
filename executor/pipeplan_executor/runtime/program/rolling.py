"""Steps of a run without a flush (``staleness`` 1): a batch begins while the one before it still ends. No torch here.

::

    a batch alone    F0 F1 F2 B0 F3 B1 B2 B3 R U
    one after        F0 F1 F2 B0 F3 B1 │ F0 B2 F1 B3 R F2 B0 F3 B1 U │ F0 B2 F1 B3 R F2 B0 F3 B1 U │ B2 B3 R U
    another          first               then: batch 1, the end of 0   then: batch 2, the end of 1   last

The lists are the planner's (`pipeplan.schedules.stale`). A batch's steps begin with its first forward, so that its data
is not needed earlier. R begins the sums of a batch, and U waits for them, so they run beside the next batch. Numbers of
micro-batches of odd batches are higher by as many as a batch has, and R and U have that of a batch's first one.

Receives are posted where they would be in one long list, so that of a batch's first tensor in the steps of the batch
before, one pass ahead. If no batch follows, the sender sends it something that nobody reads.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate import validate_order
from pipeplan.schedules.stale import through_batches
from pipeplan_executor.runtime.program.lower import Receive, Send, Small, Step, insert_messages, reply_places
from pipeplan_executor.runtime.program.order import find_owners
from pipeplan_formulations.common.dependencies import OF_MICRO_BATCHES

BATCHES = 5
"""Batches that are lowered together."""
MIDDLE = 2
"""The one whose steps are those of every batch in the middle."""


class RollingSteps(NamedTuple):
    """Steps of one rank.

    Attributes
    ----------
    first : tuple of Step
        Of a batch that begins alone; it counts as even.
    then : tuple of tuple of Step
        Of an even batch and the end of the odd one before it; and the other way round.
    last : tuple of tuple of Step
        The end of the last batch, if that is even, or odd.
    ahead : tuple of tuple of Step
        Sends of what the last batch, if that is even, or odd, has posted receives for, although no batch follows.
    micro_batches : int
        Of a batch; the numbers of an odd one are higher by so many.
    """

    first: tuple[Step, ...]
    then: tuple[tuple[Step, ...], ...]
    last: tuple[tuple[Step, ...], ...]
    ahead: tuple[tuple[Step, ...], ...]
    micro_batches: int


def lower_rolling(
    schedule: Schedule, small: Small, zero1: bool = False, tied: Sequence[Sequence[int]] = (), together: bool = False
) -> tuple[RollingSteps, ...]:
    """Return the steps of every rank.

    Parameters
    ----------
    schedule, small, zero1, tied
        As for `pipeplan_executor.runtime.program.lower.lower`: the lists of a batch alone.
    together : bool
        All ranks begin an update together, since they agree on a norm or a scale.

    Raises
    ------
    InputError
        If they are not those of 1F1B with one stage on each rank.
    PlanError
        If the lists cannot be run so; the text says what they wait for.
    """
    owners, many = find_owners(schedule, tied), schedule.micro_batches
    validate_order(schedule, tied, zero1)
    if many < schedule.stages:
        raise PlanError(
            f"{many} micro-batches on {schedule.stages} stages: with staleness 1 two versions of the weights suffice "
            f"only for at least as many micro-batches as stages; plan {schedule.stages} or more"
        )
    early = zero1 and not (together and schedule.stages > 1)
    gathers = [stage for stage, homes in enumerate(schedule.homes) if early and len(homes) > 1]
    lists = through_batches(schedule, BATCHES + 1, gathers)
    rows = [_in_batches(order, many) for order in lists.orders]
    orders = tuple(tuple(action for part in row for action in part) for row in rows)
    _check_runs(orders, _partners(schedule, tied), together)
    later = {(stage, m + many * t): rank for (stage, m), rank in owners.items() for t in range(BATCHES)}
    steps = insert_messages(Schedule(schedule.family, orders), later, small, reply_places)
    parts = [_divided(row, each) for row, each in zip(rows, steps, strict=True)]
    ahead = [_sent_ahead(parts, rank, many) for rank in range(len(parts))]
    return tuple(_rolling(each, sent, many) for each, sent in zip(parts, ahead, strict=True))


def _in_batches(order: Sequence[Action], many: int) -> list[list[Action]]:
    """Return the actions in the steps of each of `BATCHES` batches, and those that are left of the last one.

    A batch's steps begin with its first forward. ``order`` has one batch more, ``many`` micro-batches each.
    """
    rows: list[list[Action]] = [[] for _ in range(BATCHES + 1)]
    now = 0
    for action in order:
        each = action.kind.per_micro_batch
        batch = action.micro_batch // many if each else action.micro_batch
        now = max(now, batch if action.kind is Kind.FORWARD else 0)
        if action.kind is not Kind.GATHER and (now < BATCHES or batch == BATCHES - 1):
            rows[now].append(action if each else action._replace(micro_batch=batch * many))
    for row in rows:  # sums leave before an update waits for those of the batch before
        if [action.kind for action in row[-2:]] == [Kind.UPDATE, Kind.REDUCE]:
            row[-2:] = row[:-3:-1]
    return rows


def _divided(row: Sequence[Sequence[Action]], steps: Sequence[Step]) -> list[list[Step]]:
    """Divide a rank's steps by batches.

    The receive for a forward stays where it is. That for a backward belongs to its reader, as the end of a last batch
    has no forwards between which it could be.
    """
    home = {action: number for number, part in enumerate(row) for action in part}
    found: list[list[Step]] = [[] for _ in row]
    ahead: list[Step] = []
    now = 0
    for step in steps:
        if isinstance(step, Action):
            now = home[step]
            found[now] += [*ahead, step]
            ahead = []
        elif not isinstance(step, Receive):
            found[now].append(step)
        elif step.message.reads.kind is Kind.FORWARD:
            ahead.append(step)
        else:
            found[home[step.message.reads]].append(step)
    return found


def _sent_ahead(parts: Sequence[Sequence[Sequence[Step]]], rank: int, many: int) -> list[Step]:
    """Return the rank's sends of the next batch whose receives are among the steps of one in the middle."""
    received = [step.message for each in parts for step in each[MIDDLE] if isinstance(step, Receive)]
    return [Send(m) for m in received if m.source == rank and m.reads.micro_batch // many > MIDDLE]


def _rolling(parts: Sequence[Sequence[Step]], ahead: Sequence[Step], many: int) -> RollingSteps:
    """Number the steps of the first batch, one in the middle, and the end of the last one: all of even batches."""

    def numbered(steps: Sequence[Step], shift: int) -> tuple[Step, ...]:
        return tuple(_numbered(step, shift, many) for step in steps)

    middle, last = parts[MIDDLE], parts[BATCHES]
    then, end, sent = (tuple(numbered(row, shift) for shift in (0, many)) for row in (middle, last, ahead))
    return RollingSteps(numbered(parts[0], 0), then, end, sent, many)


def _numbered(step: Step, shift: int, many: int) -> Step:
    def action(each: Action) -> Action:
        return each._replace(micro_batch=(each.micro_batch + shift) % (2 * many))

    if isinstance(step, Action):
        return action(step)
    message = step.message
    return type(step)(message._replace(made=action(message.made), reads=action(message.reads)))


def _partners(schedule: Schedule, tied: Sequence[Sequence[int]]) -> list[set[int]]:
    """Return for each rank those whose sums its update waits for."""
    homes, stages = schedule.homes, [order[0].stage for order in schedule.orders]
    group = {stage: row for row in tied for stage in row}
    reduces = [rank for rank, order in enumerate(schedule.orders) if any(a.kind is Kind.REDUCE for a in order)]
    return [{r for s in group.get(own, (own,)) for r in homes[s] if r in reduces} for own in stages]


def _check_runs(orders: Sequence[Sequence[Action]], partners: Sequence[Iterable[int]], together: bool) -> None:
    """Refuse lists that cannot run to the end.

    An update waits until all partners have begun their sums, or with ``together`` until all ranks have reached it.
    """
    cells = {(a.kind.part, *a[1:]) for order in orders for a in order if a.kind.per_micro_batch}
    done: set[object] = set()
    position = [0] * len(orders)

    def needs(rank: int, action: Action) -> Iterator[object]:
        kind, stage, number, part = action
        if kind is Kind.UPDATE:
            others = range(len(orders)) if together else partners[rank]
            yield from ((Kind.UPDATE if together else Kind.REDUCE, number, other) for other in others)
        elif kind is not Kind.REDUCE:
            for other, away, slices in OF_MICRO_BATCHES[kind.part]:
                cell = other, stage + away, number, part + slices
                if cell in cells:
                    yield cell

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                action = order[position[rank]]
                if action.kind is Kind.UPDATE:
                    done.add((Kind.UPDATE, action.micro_batch, rank))
                if any(need not in done for need in needs(rank, action)):
                    break
                done.add(
                    (action.kind.part, *action[1:])
                    if action.kind.per_micro_batch
                    else (action.kind, action.micro_batch, rank)
                )
                position[rank] += 1
                moved = True
    waiting = [f"rank {r} at {o[position[r]]}" for r, o in enumerate(orders) if position[r] < len(o)]
    if waiting:
        raise PlanError(
            f"without a flush the lists of {len(orders)} ranks wait for each other ({'; '.join(waiting[:8])}); hold "
            "more micro-batches in flight on earlier stages, or plan without staleness"
        )
