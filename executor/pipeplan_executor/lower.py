"""From a schedule to what every rank really does: its actions, with sends and receives between them. No torch here.

::

    rank 0   0F0 send 0F1 send                        receive 0B0 ...
    rank 1   receive receive 1F0 1B0 send 1F1 ...

A send stands right behind the action that makes the tensor. Messages between two ranks carry no tag and are matched in
order, so for every ordered pair of ranks the receives stand in the order of the sends. Within that, a receive is posted
one action ahead of the one that reads it: early enough for the tensor to arrive meanwhile, late enough not to hold a
buffer for long.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from pipeplan.errors import PlanError
from pipeplan.schedule import Action, Kind, Schedule

BACKWARD = (Kind.BACKWARD, Kind.INPUT_GRADIENT)
"""The actions that make a gradient for the stage ahead."""


class Message(NamedTuple):
    """A tensor for another rank: what ``made`` it, and the action that ``reads`` it there."""

    made: Action
    reads: Action
    source: int
    target: int


class Send(NamedTuple):
    """Hand a message to the network."""

    message: Message


class Receive(NamedTuple):
    """Expect a message."""

    message: Message


Step: TypeAlias = Action | Send | Receive
Owners: TypeAlias = Mapping[tuple[int, int], int]
"""The rank that runs each (stage, micro-batch)."""


def lower(schedule: Schedule, ahead: int = 1) -> tuple[tuple[Step, ...], ...]:
    """One list of steps for every rank.

    Parameters
    ----------
    schedule : Schedule
    ahead : int
        How many actions before its reader a receive is posted.

    Raises
    ------
    PlanError
        If actions are missing, doubled or of a kind that cannot be run, or the order would deadlock; then the text
        says what every rank waits for.
    """
    owners = find_owners(schedule)
    check_order(schedule, owners)
    place = {action: i for order in schedule.orders for i, action in enumerate(order)}
    posts = _receives(schedule, owners, place, ahead)
    return tuple(tuple(_steps(rank, order, posts)) for rank, order in enumerate(schedule.orders))


def find_owners(schedule: Schedule) -> Owners:
    """Who runs what, after checking that every stage does every micro-batch exactly once."""
    done: dict[tuple[int, int], list[tuple[Kind, int]]] = defaultdict(list)
    once: set[Action] = set()
    ranks: dict[int, set[int]] = defaultdict(set)
    for rank, order in enumerate(schedule.orders):
        if not order:
            raise PlanError(f"rank {rank} has nothing to do; a plan gives every rank at least one stage")
        for action in order:
            if action.slice:
                raise PlanError(f"{action}: sequences cut into slices cannot be run yet; plan without slices")
            ranks[action.stage].add(rank)
            if action.kind.per_micro_batch:
                done[action.stage, action.micro_batch].append((action.kind, rank))
            elif action in once:
                raise PlanError(f"{action} stands twice in the schedule; a stage does it once a step")
            once.add(action)
    for stage, where in sorted(ranks.items()):
        if len(where) > 1:
            raise PlanError(f"stage {stage} is on ranks {sorted(where)}; replicated stages cannot be run yet")
    for stage in range(schedule.stages):
        for micro_batch in range(schedule.micro_batches):
            _check_complete(stage, micro_batch, [kind for kind, _ in done[stage, micro_batch]])
    return {key: entries[0][1] for key, entries in done.items()}


def _check_complete(stage: int, micro_batch: int, kinds: list[Kind]) -> None:
    joined, split = sorted("FB"), sorted("FIW")
    if sorted(kinds) not in (joined, split):
        found = " ".join(kinds) or "nothing"
        raise PlanError(
            f"stage {stage}, micro-batch {micro_batch}: the schedule has {found}; it needs one F, and one B or one I "
            "and one W"
        )


def needs(action: Action, schedule: Schedule, split: frozenset[tuple[int, int]]) -> Iterator[Action]:
    """What must have run before an action; ``split`` holds the (stage, micro-batch) whose backward is I and W."""
    kind, stage, micro_batch, _ = action

    def backward(at: int, number: int) -> Action:
        return Action(Kind.INPUT_GRADIENT if (at, number) in split else Kind.BACKWARD, at, number)

    if kind is Kind.FORWARD:
        if stage:
            yield Action(Kind.FORWARD, stage - 1, micro_batch)
    elif kind in BACKWARD:
        yield Action(Kind.FORWARD, stage, micro_batch)
        if stage < schedule.stages - 1:
            yield backward(stage + 1, micro_batch)
    elif kind is Kind.WEIGHT_GRADIENT:
        yield Action(Kind.INPUT_GRADIENT, stage, micro_batch)
    else:
        for number in range(schedule.micro_batches):
            last = Kind.WEIGHT_GRADIENT if (stage, number) in split else Kind.BACKWARD
            yield Action(last, stage, number)


def check_order(schedule: Schedule, owners: Owners) -> None:
    """Run the lists on paper; raise if they block each other."""
    split = frozenset((a.stage, a.micro_batch) for a in schedule.actions() if a.kind is Kind.INPUT_GRADIENT)
    reduces = {a.stage for a in schedule.actions() if a.kind is Kind.REDUCE}
    done: set[Action] = set()
    position = [0] * len(schedule.orders)

    def missing(action: Action) -> Action | None:
        if action.kind is Kind.UPDATE and action.stage in reduces:
            reduce = Action(Kind.REDUCE, action.stage)
            if reduce not in done:
                return reduce
        return next((need for need in needs(action, schedule, split) if need not in done), None)

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            while position[rank] < len(order) and missing(order[position[rank]]) is None:
                done.add(order[position[rank]])
                position[rank] += 1
                moved = True
    stuck = [(rank, order[position[rank]]) for rank, order in enumerate(schedule.orders) if position[rank] < len(order)]
    if stuck:
        lines = []
        for rank, action in stuck:
            need = missing(action)
            assert need is not None
            holder = owners[need.stage, need.micro_batch]
            where = "further down its own list" if holder == rank else f"of rank {holder}"
            lines.append(f"rank {rank} stands at {action} and waits for {need} {where}")
        raise PlanError("this schedule would deadlock: " + "; ".join(lines))


def messages(schedule: Schedule, owners: Owners) -> Iterator[Message]:
    """Every tensor that goes from one rank to another, each source's in the order in which they are made."""
    readers = {(a.stage, a.micro_batch): a for a in schedule.actions() if a.kind in BACKWARD}
    for rank, order in enumerate(schedule.orders):
        for action in order:
            stage, micro_batch = action.stage, action.micro_batch
            reads = None
            if action.kind is Kind.FORWARD and stage < schedule.stages - 1:
                reads = Action(Kind.FORWARD, stage + 1, micro_batch)
            elif action.kind in BACKWARD and stage:
                reads = readers[stage - 1, micro_batch]
            if reads is not None and owners[reads.stage, micro_batch] != rank:
                yield Message(action, reads, rank, owners[reads.stage, micro_batch])


def _receives(
    schedule: Schedule, owners: Owners, place: Mapping[Action, int], ahead: int
) -> dict[int, dict[int, list[Message]]]:
    """For every rank: place in its list -> messages to expect just before it."""
    pairs: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages(schedule, owners):
        pairs[message.source, message.target].append(message)
    posts: dict[int, dict[int, list[Message]]] = defaultdict(lambda: defaultdict(list))
    for row in pairs.values():
        deadline = len(place)
        late: list[tuple[int, Message]] = []
        for message in reversed(row):  # an earlier message is never expected after a later one
            deadline = min(deadline, place[message.reads])
            late.append((max(0, deadline - ahead), message))
        for post, message in reversed(late):
            posts[message.target][post].append(message)
    return posts


def _steps(rank: int, order: tuple[Action, ...], posts: Mapping[int, Mapping[int, list[Message]]]) -> Iterator[Step]:
    sends = {m.made: m for row in posts.values() for group in row.values() for m in group if m.source == rank}
    for number, action in enumerate(order):
        yield from map(Receive, posts.get(rank, {}).get(number, ()))
        yield action
        if action in sends:
            yield Send(sends[action])
