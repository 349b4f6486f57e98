"""Local searches from several plans, the most promising one first.

Each is a *late acceptance* hill climb: a neighbour replaces the current plan if it takes no longer than that one, or
than the one that was current some tries ago. So the climb leaves small hills, without a temperature to choose (Burke
and Bykov, European Journal of Operational Research 258, 2017; from memory).
"""

from dataclasses import dataclass, field
from random import Random

from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.local_search.moves import Moves, Neighbour, Placement
from pipeplan.search.space.space import Space

MEMORY = 60
"""Tries after which a value is forgotten."""
SLICE = 50
"""Tries of one climb at once."""
WORSE = 0.003
"""A climb waits behind those up to this much worse for each slice that did not improve its best plan."""
MOST_SEEN = 2**16
"""Values that are kept for plans that were tried."""


@dataclass
class _Climb:
    """One local search.

    Attributes
    ----------
    plan, best : EvaluatedPlan
    placement, start : Placement
        Those of ``plan`` and ``best``.
    idle : int
        Slices since ``best`` was found.
    """

    plan: EvaluatedPlan
    best: EvaluatedPlan
    placement: Placement
    start: Placement
    idle: int = 0
    number: int = 0
    past: list[int] = field(default_factory=list)

    @property
    def priority(self) -> float:
        """The least comes first."""
        return self.best.value * (1 + WORSE * self.idle)


class LocalSearch:
    """Local search over a space, from all plans that it was given."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._moves = Moves(space, Random(seed))
        self._climbs: dict[object, _Climb] = {}
        self._values: dict[tuple[object, ...], EvaluatedPlan | None] = {}

    @property
    def ready(self) -> bool:
        """True if there is a plan to start from."""
        return bool(self._climbs)

    def add(self, plan: EvaluatedPlan) -> None:
        """Search from this plan too, unless one on the same groups, with the same micro-batches, is as good."""
        chain = plan.candidate.chain
        placement = Placement.of(self._space, chain.groups)
        key = tuple(tuple(device.index for device in group) for group in chain.groups), chain.micro_batch
        known = self._climbs.get(key)
        if known is None or plan.value < known.best.value:
            self._climbs[key] = _Climb(plan, plan, placement, placement, past=[plan.value] * MEMORY)

    def improve(self, tries: int = SLICE) -> EvaluatedPlan | None:
        """Try neighbours of the most promising plan; return the last that is better than all before, if any is."""
        best = min(each.best.value for each in self._climbs.values())
        climb = min(self._climbs.values(), key=lambda each: each.priority)
        before = climb.best.value
        for _ in range(tries):
            self._try(climb)
        climb.idle = 0 if climb.best.value < before else climb.idle + 1
        if climb.idle and climb.idle % 20 == 0:  # start again from the best plan, with other random moves
            climb.plan, climb.placement, climb.past = climb.best, climb.start, [climb.best.value] * MEMORY
        return climb.best if climb.best.value < best else None

    def _try(self, climb: _Climb) -> None:
        neighbour = self._moves.neighbour(climb.plan, climb.placement)
        if neighbour is None:
            return
        place = climb.number % MEMORY
        climb.number += 1
        most = max(climb.plan.value, climb.past[place])
        plan = self._evaluated(neighbour, most)
        if plan is not None and plan.value <= most:
            climb.plan, climb.placement = plan, neighbour.placement
            if plan.value < climb.best.value:
                climb.best, climb.start = plan, neighbour.placement
        climb.past[place] = climb.plan.value

    def _evaluated(self, neighbour: Neighbour, most: int) -> EvaluatedPlan | None:
        """The plan of a neighbour; None if it is not in the space, does not fit, or has a bound above ``most``."""
        key = neighbour.key
        if key not in self._values:
            if len(self._values) >= MOST_SEEN:
                self._values.clear()
            self._values[key] = self._judged(neighbour, most)
        return self._values[key]

    def _judged(self, neighbour: Neighbour, most: int) -> EvaluatedPlan | None:
        candidate, boundaries = neighbour.candidate, neighbour.boundaries
        if self._space.unasked(candidate, boundaries) is not None or not candidate.fits(boundaries):
            return None
        if candidate.problem.evaluate(boundaries) > most:
            return None
        return evaluate(self._space.cluster, candidate, boundaries)
