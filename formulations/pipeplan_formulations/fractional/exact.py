"""The exact method: bisection on T, each target tested in closed form (`reach`).

::

    proven impossible       doubted           not tested      possible
    ─────────────────┤ . . . . . . . . . ┤─────────────────├──────────▶ T
                    low     doubt       floor             high

A test may end in doubt. The bisection then goes on above the doubted targets, since an impossible one there settles all
below it; afterwards it goes on below them, until what is doubted is short.
"""

from pipeplan_formulations.clock import OutOfTimeError
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.fractional.problem import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.reach import within
from pipeplan_formulations.fractional.rounding import tidy
from pipeplan_formulations.fractional.tables import Tables
from pipeplan_formulations.report import Limits, Progress, Report, Stop

NAME = "exact"
SHORT = 1e-4
"""Part of the incumbent's value below which a stretch of doubted targets is left alone."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    enough: int | None = None,
) -> Report[Positions]:
    """Minimise T to a whole unit; sums are as good as doubles are (see `whole`).

    Parameters
    ----------
    problem : FractionalPartition
    limits : Limits
        ``workers`` and ``seed`` are not used.
    hint : positions, optional
        A solution to start from; ignored if it breaks (1).
    progress : callable, optional
        See `pipeplan_formulations.report.Progress`.
    enough : int, optional
        Stop with what there is once the bound has reached this.

    Raises
    ------
    ValueError
        If the problem has path cuts.
    """
    if problem.paths:
        raise ValueError("path cuts couple distant stages, which this method cannot; ask cbc or cpsat")
    bisection = _Bisection(problem, limits, progress, hint)
    bracket, tables = bisection.bracket, Tables(problem)
    stop = Stop.OPTIMALITY
    target: int | None = bracket.low
    if enough is not None and bracket.low < enough <= problem.largest and not (bracket.high or enough) < enough:
        target = enough - 1
    step = max(1, bracket.low // 64)
    try:
        while target is not None and (enough is None or bracket.low < enough) and not bracket.proven:
            found, certain = within(tables, target, bracket.clock)
            bisection.learn(target, found, certain)
            if bracket.high is not None:
                target = bisection.next(limits.gap)
            elif target >= problem.largest:
                bracket.impossible = True
                break
            else:
                target, step = min(target + step, problem.largest), 2 * step
        stop = Stop.OPTIMALITY if bracket.high is None or bracket.proven else Stop.GAP
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME)


class _Bisection:
    """Which target to test next.

    Attributes
    ----------
    floor : int
        No target below it need be tested from above.
    doubt : int or None
        The least target whose test ended in doubt.
    """

    def __init__(
        self, problem: FractionalPartition, limits: Limits, progress: Progress | None, hint: Positions | None
    ) -> None:
        self._problem = problem
        self.bracket = Bracket(self._value, limits, progress)
        self.bracket.low = self.floor = problem.lower_bound()
        self.doubt: int | None = None
        if hint is not None and problem.feasible(hint):
            self.bracket.offer(hint)

    def _value(self, positions: Positions) -> int:
        return max(self.bracket.low, whole(self._problem.evaluate(positions)))

    def learn(self, target: int, found: Positions | None, certain: bool) -> None:
        """Record the outcome of a test (see `reach.within`); what it found counts as no more than its target."""
        bracket = self.bracket
        if found is not None:
            found = tidy(self._problem, found)
            bracket.offer(found, min(self._value(found), target) if certain else None)
        if not certain:
            self.doubt = target if self.doubt is None else min(self.doubt, target)
            self.floor = max(self.floor, target + 1)
        elif found is None:
            bracket.raise_low(target + 1)
            self.floor = max(self.floor, bracket.low)
            if self.doubt is not None and self.doubt < bracket.low:
                self.doubt = None

    def next(self, gap: float) -> int | None:
        """The next target once there is an incumbent; None if it is near enough, or nothing more can be settled."""
        low, high = self.bracket.low, self.bracket.high
        assert high is not None
        if self.bracket.closed:
            return None
        if high > self.floor:
            return (self.floor + high - 1) // 2
        if self.doubt is not None and self.doubt - low > max(gap, SHORT) * high:
            return (low + self.doubt) // 2
        return None
