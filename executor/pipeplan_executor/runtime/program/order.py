"""Who runs what, and whether the lists of actions can be played to the end. No torch here.

::

    rank 0   0F0 0F2 0B0 0B2 0R 0U      two replicas of stage 0: a reduction is one act of both, so neither
    rank 1   0F1 0F3 0B1 0B3 0R 0U      passes 0R before the other one stands at it
    rank 2   1F0 1B0 1F1 1B1 …
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Action, Kind, Schedule

BACKWARD = (Kind.BACKWARD, Kind.INPUT_GRADIENT)
"""The actions that make a gradient for the stage ahead."""

Owners: TypeAlias = Mapping[tuple[int, int], int]
"""The rank that runs each (stage, micro-batch)."""


def find_replicas(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The ranks that run each stage, ascending."""
    found: dict[int, set[int]] = defaultdict(set)
    for rank, order in enumerate(schedule.orders):
        for action in order:
            found[action.stage].add(rank)
    return tuple(tuple(sorted(found[stage])) for stage in range(schedule.stages))


def find_owners(schedule: Schedule, tied: Sequence[Sequence[int]] = ()) -> Owners:
    """Who runs what, after checking that every stage does every micro-batch once, each on one of its ranks.

    ``tied``: groups of stages that hold copies of the same weights, and so reduce, together.

    Raises
    ------
    PlanError
        If actions are missing, doubled, spread over ranks or of a kind that cannot be run.
    """
    done: dict[tuple[int, int], list[tuple[Kind, int]]] = defaultdict(list)
    for rank, order in enumerate(schedule.orders):
        if not order:
            raise PlanError(f"rank {rank} has nothing to do; a plan gives every rank at least one stage")
        for action, count in Counter(order).items():
            if action.slice:
                raise PlanError(f"{action}: sequences cut into slices cannot be run yet; plan without slices")
            if action.kind.per_micro_batch:
                done[action.stage, action.micro_batch] += [(action.kind, rank)] * count
            elif count > 1:
                raise PlanError(f"{action} stands {count} times in the list of rank {rank}; once a step is enough")
    for stage, ranks in enumerate(find_replicas(schedule)):
        for micro_batch in range(schedule.micro_batches):
            _check_micro_batch(stage, micro_batch, done[stage, micro_batch])
        _check_once_a_step(stage, ranks, schedule, any(stage in group for group in tied))
    return {key: entries[0][1] for key, entries in done.items()}


def _check_micro_batch(stage: int, micro_batch: int, found: list[tuple[Kind, int]]) -> None:
    kinds, ranks = sorted(kind for kind, _ in found), sorted({rank for _, rank in found})
    if kinds not in (sorted("FB"), sorted("FIW")):
        raise PlanError(
            f"stage {stage}, micro-batch {micro_batch}: the schedule has {' '.join(kinds) or 'nothing'}; it needs one "
            "F, and one B or one I and one W"
        )
    if len(ranks) > 1:
        raise PlanError(
            f"stage {stage}, micro-batch {micro_batch}: its actions are spread over ranks {ranks}; one replica runs "
            "all actions of a micro-batch"
        )


def _check_once_a_step(stage: int, ranks: tuple[int, ...], schedule: Schedule, tied: bool) -> None:
    for kind in (Kind.REDUCE, Kind.UPDATE):
        lacking = [rank for rank in ranks if Action(kind, stage) not in schedule.orders[rank]]
        needed = kind is Kind.REDUCE and (tied or len(ranks) > 1)
        if lacking and (needed or len(lacking) < len(ranks)):
            raise PlanError(
                f"stage {stage} is on ranks {list(ranks)}, but {Action(kind, stage)} is missing on rank {lacking[0]}; "
                "every replica reduces and updates alike, and so does a stage that shares weights with another one"
            )


def needs(action: Action, schedule: Schedule, split: frozenset[tuple[int, int]]) -> Iterator[Action]:
    """What must have run, anywhere, before a forward or backward.

    ``split`` holds the (stage, micro-batch) pairs whose backward is I and W.
    """
    kind, stage, micro_batch, _ = action
    if kind is Kind.FORWARD:
        if stage:
            yield Action(Kind.FORWARD, stage - 1, micro_batch)
    elif kind in BACKWARD:
        yield Action(Kind.FORWARD, stage, micro_batch)
        if stage < schedule.stages - 1:
            joined = (stage + 1, micro_batch) not in split
            yield Action(Kind.BACKWARD if joined else Kind.INPUT_GRADIENT, stage + 1, micro_batch)
    elif kind is Kind.WEIGHT_GRADIENT:
        yield Action(Kind.INPUT_GRADIENT, stage, micro_batch)


def check_order(
    schedule: Schedule,
    owners: Owners,
    collective: frozenset[Kind] = frozenset({Kind.REDUCE}),
    tied: Sequence[Sequence[int]] = (),
) -> None:
    """Play the lists on paper.

    Parameters
    ----------
    collective : frozenset of Kind
        The once-a-step actions in which all replicas of a stage take part together.
    tied : sequence of sequence of int
        Groups of stages whose reductions are one act of all their replicas.

    Raises
    ------
    PlanError
        If they block each other; the text says what every rank waits for.
    """
    game = _Game(schedule, owners, collective, tied)
    while sum(map(game.advance, range(len(schedule.orders)))):
        pass
    stuck = [rank for rank in range(len(schedule.orders)) if game.next(rank) is not None]
    if stuck:
        lines = [f"rank {rank} stands at {game.next(rank)} and waits for {game.obstacle(rank)}" for rank in stuck]
        raise PlanError("this schedule would deadlock: " + "; ".join(lines))


class _Game:
    """How far every rank has come."""

    def __init__(
        self, schedule: Schedule, owners: Owners, collective: frozenset[Kind], tied: Sequence[Sequence[int]]
    ) -> None:
        self.schedule, self.owners, self.collective = schedule, owners, collective
        self.position = [0] * len(schedule.orders)
        self.replicas = find_replicas(schedule)
        self.group = {stage: tuple(group) for group in tied for stage in group}
        actions = [(rank, a) for rank, order in enumerate(schedule.orders) for a in order]
        self.split = frozenset((a.stage, a.micro_batch) for _, a in actions if a.kind is Kind.INPUT_GRADIENT)
        self.reduces = {(rank, a.stage) for rank, a in actions if a.kind is Kind.REDUCE}
        self.left = Counter((rank, a.stage) for rank, a in actions if _ends_a_micro_batch(a))
        self.done: set[tuple[int, Action]] = set()

    def next(self, rank: int) -> Action | None:
        """Where a rank stands; None at the end of its list."""
        order, position = self.schedule.orders[rank], self.position[rank]
        return order[position] if position < len(order) else None

    def advance(self, rank: int) -> int:
        """Let a rank run as far as it can; by how many actions it moved."""
        start = self.position[rank]
        while (action := self.next(rank)) is not None and not self.obstacle(rank):
            self.done.add((rank, action))
            self.left[rank, action.stage] -= _ends_a_micro_batch(action)
            self.position[rank] += 1
        return self.position[rank] - start

    def obstacle(self, rank: int) -> str:
        """What the rank waits for, in words; empty if nothing."""
        action = self.next(rank)
        assert action is not None
        if action.kind.per_micro_batch:
            for need in needs(action, self.schedule, self.split):
                holder = self.owners[need.stage, need.micro_batch]
                if (holder, need) not in self.done:
                    return f"{need} " + ("further down its own list" if holder == rank else f"of rank {holder}")
            return ""
        if not self._alone_ready(rank, action):
            return "what stands further down its own list"
        if action.kind in self.collective:
            group = self.group.get(action.stage, (action.stage,)) if action.kind is Kind.REDUCE else (action.stage,)
            for its in (action._replace(stage=stage) for stage in group):
                for other in self.replicas[its.stage]:
                    there = self.next(other) == its and self._alone_ready(other, its)
                    if not there and (other, its) not in self.done:
                        return f"rank {other} to come to {its}"
        return ""

    def _alone_ready(self, rank: int, action: Action) -> bool:
        reduced = action.kind is Kind.REDUCE or (rank, action.stage) not in self.reduces
        return not self.left[rank, action.stage] and (reduced or (rank, Action(Kind.REDUCE, action.stage)) in self.done)


def _ends_a_micro_batch(action: Action) -> bool:
    """Whether the action adds the micro-batch's part to the weight gradients."""
    return action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)
