"""What every rank does in a pass without backwards, as in evaluation. No torch here.

::

    rank 0   0F0 send 0F1 send 0F2 send settle 0F0 …       the plan's order, with everything but forwards left out
    rank 1        receive 1F0 receive 1F1 …

No reply tells when a tensor was taken. But if every rank took one action a round, each would run in a certain round,
and an action waits for earlier rounds only. So a sender may wait for a message behind its first action of a later round
than the reader's: then ranks never wait in a circle.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial

from pipeplan.schedule import Action, Kind, Schedule, find_readers
from pipeplan_executor.steps.lower import Message, Small, Step, arranged


def lower_forward(schedule: Schedule, small: Small) -> tuple[tuple[Step, ...], ...]:
    """One list of steps for every rank.

    Parameters
    ----------
    schedule : Schedule
        For a training step; it can be played to the end.
    small : callable
    """
    orders = tuple(tuple(a for a in order if a.kind is Kind.FORWARD) for order in schedule.orders)
    owners = {(a.stage, a.micro_batch): rank for rank, order in enumerate(orders) for a in order}
    settling = partial(_settling, _rounds(orders))
    return arranged(Schedule("forward only", orders), owners, small, settling)


def _rounds(orders: Sequence[Sequence[Action]]) -> Mapping[Action, int]:
    """The round in which each action runs if every rank takes one a round."""
    inputs = {reader: maker for maker, reader in find_readers(action for order in orders for action in order).items()}
    found: dict[Action, int] = {}
    position = [0] * len(orders)
    for number in range(sum(map(len, orders))):
        standing = [(rank, order[position[rank]]) for rank, order in enumerate(orders) if position[rank] < len(order)]
        ready = {rank: action for rank, action in standing if action not in inputs or inputs[action] in found}
        found.update((action, number) for action in ready.values())
        for rank in ready:
            position[rank] += 1
    return found


def _settling(
    rounds: Mapping[Action, int],
    row: Sequence[Message],
    _replies: Sequence[Message],
    _place: Mapping[Action, int],
    own: Sequence[Action],
) -> list[int]:
    return [min(bisect_right(own, rounds[m.reads], key=rounds.__getitem__), len(own) - 1) for m in row]
