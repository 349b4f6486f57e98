"""Where the optimum can lie, and which target to test next.

::

    proven impossible       doubted           not tested      possible
    ─────────────────┤ . . . . . . . . . ┤─────────────────├──────────▶ T
                    low     doubt       floor             high

A test may end in doubt. The bisection then goes on above the doubted targets, since an impossible one there settles all
below it; afterwards it goes on below them, until what is doubted is short.
"""

from dataclasses import dataclass

from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.rounding import tidy

SHORT = 1e-4
"""Part of the incumbent's value below which a stretch of doubted targets is left alone."""


@dataclass
class Bracket:
    """``low`` ≤ optimum ≤ ``high``, the value of ``best``; no target below ``floor`` need be tested from above."""

    problem: FractionalPartition
    low: int
    best: Positions | None = None
    high: int | None = None
    floor: int = 0
    doubt: int | None = None

    def offer(self, positions: Positions, most: int | None = None) -> None:
        """Keep the positions if they are better; their value counts as no more than ``most``, a test's own target."""
        value = max(self.low, whole(self.problem.evaluate(positions)))
        value = value if most is None else min(value, most)
        if self.high is None or value < self.high:
            self.best, self.high = positions, value

    def learn(self, target: int, found: Positions | None, certain: bool) -> None:
        """What a test said: see `reach.within`."""
        if found is not None:
            self.offer(tidy(self.problem, found), target if certain else None)
        if not certain:
            self.doubt = target if self.doubt is None else min(self.doubt, target)
            self.floor = max(self.floor, target + 1)
        elif found is None:
            self.low = max(self.low, target + 1)
            self.floor = max(self.floor, self.low)
            if self.doubt is not None and self.doubt < self.low:
                self.doubt = None

    def next(self, gap: float) -> int | None:
        """The next target once there is an incumbent; None if it is near enough, or nothing more can be settled."""
        assert self.high is not None
        if self.high - self.low <= gap * self.high:
            return None
        if self.high > self.floor:
            return (self.floor + self.high - 1) // 2
        if self.doubt is not None and self.doubt - self.low > max(gap, SHORT) * self.high:
            return (self.low + self.doubt) // 2
        return None


def start(problem: FractionalPartition, hint: Positions | None) -> Bracket:
    """From the bound that needs no solver, and a hint if it keeps (1)."""
    low = problem.lower_bound()
    bracket = Bracket(problem, low, floor=low)
    if hint is not None and problem.feasible(hint):
        bracket.offer(hint)
    return bracket
