"""Lowering of a schedule to the steps of every rank: its actions, with sends and receives between them. No torch here.

::

    rank 0   0F0 send 0F1 send                        receive 0B0 settle ...
    rank 1   receive receive 1F0 1B0 send 1F1 ...

A send follows the action that makes the tensor. Messages between two ranks have no tag and are matched in order, so for
every ordered pair of ranks the receives are in the order of the sends. Within that, a receive is posted one action
before the one that reads it: early enough for the tensor to arrive meanwhile, late enough not to hold a buffer for
long. The receive of a small message is posted one arrival earlier: posting takes time, and a rank that waits for
another message has some.

A sent tensor must be kept until it is received. A settle stands where reception is known without waiting: after the
first action that read a tensor which the receiver made after it had read the message. A message without such a reply
is settled at the end.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from pipeplan.core.schedule import Action, Kind, Schedule, find_readers
from pipeplan.core.validate import validate_order
from pipeplan_executor.runtime.program.order import Owners, find_owners


class Message(NamedTuple):
    """Tensors for another rank: the action that ``made`` them, and the action that ``reads`` them there."""

    made: Action
    reads: Action
    source: int
    target: int


class Send(NamedTuple):
    """Start sending a message."""

    message: Message


class Receive(NamedTuple):
    """Post the receive of a message."""

    message: Message


class Settle(NamedTuple):
    """Wait for a sent message to complete, and release its tensors."""

    message: Message


Step: TypeAlias = Action | Send | Receive | Settle

Small: TypeAlias = Callable[[Message], bool]
"""Predicate: the receive of a message is posted early."""


def lower(
    schedule: Schedule, small: Small, zero1: bool = False, tied: Sequence[Sequence[int]] = ()
) -> tuple[tuple[Step, ...], ...]:
    """Return the list of steps of every rank.

    Parameters
    ----------
    schedule : Schedule
    small : callable
    zero1 : bool
        Each replica of a stage updates a share, and begins to send it to the others: an update is then a collective.
    tied : sequence of sequence of int
        Groups of stages that hold copies of the same weights: their reductions are one collective.

    Raises
    ------
    PlanError
        If actions are missing, doubled or of a kind that cannot be run, or the order would deadlock; then the text
        names what every rank (a device of the schedule) waits for.
    """
    owners = find_owners(schedule, tied)
    validate_order(schedule, tied, zero1)
    return insert_messages(schedule, owners, small, reply_places)


def lower_forward(schedule: Schedule, small: Small, sharded: bool = False) -> tuple[tuple[Step, ...], ...]:
    """Return the list of steps of every rank for a pass without backwards, as in evaluation.

    ::

        rank 0   0F0 send 0F1 send 0F2 send settle 0F0 …       the plan's order, with only its forwards
        rank 1        receive 1F0 receive 1F1 …

    No reply shows when a tensor was received. Assign each action a round, by letting every rank run one action per
    round; an action depends only on earlier rounds. A sender waits for a message after its first action of a later
    round than the reader's, so ranks never wait in a cycle.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a training step, free of deadlocks.
    small : callable
    sharded : bool
        The replicas of a stage begin each forward together (levels 2 and 3 of ZeRO), so in the same round.
    """
    orders = tuple(tuple(a for a in order if a.kind is Kind.FORWARD) for order in schedule.orders)
    owners = {(a.stage, a.micro_batch): rank for rank, order in enumerate(orders) for a in order}
    settling = partial(_later_rounds, _rounds(orders, schedule.homes if sharded else ()))
    return insert_messages(Schedule("forward only", orders), owners, small, settling)


Settling: TypeAlias = Callable[
    [Sequence[Message], Sequence[Message], Mapping[Action, int], Sequence[Action]], list[int]
]
"""``settling(row, replies, place, own)``: for the messages ``row`` of a pair of ranks, the places in the source's list
``own`` after which they are settled. ``replies`` are the opposite messages, ``place`` has the place of every action."""


def insert_messages(
    schedule: Schedule, owners: Owners, small: Small, settling: Settling
) -> tuple[tuple[Step, ...], ...]:
    """Insert sends, receives and settles into lists of actions that are known to be free of deadlocks."""
    place = {a: i for order in schedule.orders for i, a in enumerate(order) if a.kind.per_micro_batch}
    pairs: dict[tuple[int, int], list[Message]] = defaultdict(list)
    readers: list[list[int]] = [[] for _ in schedule.orders]
    passes = [[i for i, a in enumerate(order) if a.kind.per_micro_batch] for order in schedule.orders]
    # messages of every ordered pair of ranks, in sending order; places of the actions that read one, per target
    for message in messages(schedule, owners):
        pairs[message.source, message.target].append(message)
        insort(readers[message.target], place[message.reads])
    # steps to insert before and after each place of each rank's list
    before: list[dict[int, list[Step]]] = [defaultdict(list) for _ in schedule.orders]
    after: list[dict[int, list[Step]]] = [defaultdict(list) for _ in schedule.orders]
    for (source, target), row in pairs.items():
        posts = _receive_places(row, place, readers[target], passes[target], small)
        for message, post in zip(row, posts, strict=True):
            before[target][post].append(Receive(message))
            after[source][place[message.made]].append(Send(message))
        places = settling(row, pairs.get((target, source), ()), place, schedule.orders[source])
        for message, at in zip(row, places, strict=True):
            after[source][at].append(Settle(message))
    return tuple(tuple(_steps(order, before[r], after[r])) for r, order in enumerate(schedule.orders))


def messages(schedule: Schedule, owners: Owners) -> Iterator[Message]:
    """Yield every message between ranks; those of a source in the order of the actions that make them."""
    readers = find_readers(schedule.actions())
    for rank, order in enumerate(schedule.orders):
        for action in order:
            reads = readers.get(action)
            if reads is not None and owners[reads.stage, reads.micro_batch] != rank:
                yield Message(action, reads, rank, owners[reads.stage, reads.micro_batch])


def _receive_places(
    row: Sequence[Message],
    place: Mapping[Action, int],
    readers: Sequence[int],
    passes: Sequence[int],
    small: Small,
) -> list[int]:
    """Return places in the target's list before which the receives of a pair are posted, in the order of the sends.

    ``readers``: places of the actions that read a message, ascending; ``passes``: of all forwards and backwards.
    """

    def post(message: Message) -> int:
        among = readers if small(message) else passes
        return among[max(0, bisect_left(among, place[message.reads]) - 1)]

    return list(accumulate(map(post, reversed(row)), min))[::-1]  # never after a later message


def reply_places(
    row: Sequence[Message], replies: Sequence[Message], place: Mapping[Action, int], own: Sequence[Action]
) -> list[int]:
    """Return places in the source's list after which each message of a pair is known to have been read."""
    made = [place[reply.made] for reply in replies]  # ascending
    known = list(accumulate((place[reply.reads] for reply in reversed(replies)), min))[::-1]
    firsts = [bisect_left(made, place[message.reads]) for message in row]
    return [known[first] if first < len(known) else len(own) - 1 for first in firsts]


def _rounds(orders: Sequence[Sequence[Action]], together: Sequence[tuple[int, ...]] = ()) -> Mapping[Action, int]:
    """Return the round of each action if every rank runs one action per round, when its input exists.

    ``together``: for each stage the ranks that begin its actions together; none by default.
    """
    inputs = {reader: maker for maker, reader in find_readers(action for order in orders for action in order).items()}
    found: dict[Action, int] = {}
    position = [0] * len(orders)
    for number in range(sum(map(len, orders))):
        standing = [(rank, order[position[rank]]) for rank, order in enumerate(orders) if position[rank] < len(order)]
        ready = {rank: action for rank, action in standing if action not in inputs or inputs[action] in found}
        if together:
            ready = {rank: action for rank, action in ready.items() if ready.keys() >= set(together[action.stage])}
        found.update((action, number) for action in ready.values())
        for rank in ready:
            position[rank] += 1
    return found


def _later_rounds(
    rounds: Mapping[Action, int],
    row: Sequence[Message],
    _replies: Sequence[Message],
    _place: Mapping[Action, int],
    own: Sequence[Action],
) -> list[int]:
    """Return places of the source's first action in a later round than each message's reader."""
    return [min(bisect_right(own, rounds[m.reads], key=rounds.__getitem__), len(own) - 1) for m in row]


def _steps(
    order: Sequence[Action], before: Mapping[int, Sequence[Step]], after: Mapping[int, Sequence[Step]]
) -> Iterator[Step]:
    for number, action in enumerate(order):
        yield from before.get(number, ())
        yield action
        yield from sorted(after.get(number, ()), key=lambda step: isinstance(step, Settle))  # sends come first
