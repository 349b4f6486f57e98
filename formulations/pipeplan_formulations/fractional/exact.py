"""Exact back end: bisection on T, each target tested by a dynamic programme over convex polygons.

Bisection
---------
::

    proven impossible       uncertain         not tested      possible
    ─────────────────┤ . . . . . . . . . ┤─────────────────├──────────▶ T
                    low   uncertain    untested           high

A test may be inconclusive. The bisection then continues above the uncertain targets, since an impossible target there
settles all targets below it. Afterwards it continues below them, until the uncertain interval is short.

Test of one target T: the possible positions of each boundary (`within`)
------------------------------------------------------------------------
For a stage from α in layer a to β in layer b every constraint is linear in (α, β), because every sum over the stage is
P[b] − P[a] − t_a α + t_b β. The pairs that satisfy all constraints form a convex polygon. The least H over β is the
lower edge of the polygon's image:

::

    β │   ┌────╲                 H at b + β = (H at a + α) + w + 2 l
      │   │     ╲   rows
      │   └──────┘               least over α: the lower hull of the corners' images (β, H)
      └───────────── α

The services bound contains R, which is known only after the last stage, and each stage's e. With a guess ρ of R it is a
constraint of one stage, e ≤ T − ρ. The least R that these constraints allow grows with ρ. So the iteration ρ ← R,
started below R, converges to the least fixed point, or R exceeds the target.
"""

from itertools import pairwise

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits, Report, Stop
from pipeplan_formulations.fractional.instance import TOLERANCE, FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.pieces import Piece, Point, clip, envelope, lower_hull
from pipeplan_formulations.fractional.rounding import tidy
from pipeplan_formulations.fractional.tables import Tables

GUESSES = 40
"""Largest number of guesses of R in one test. They converge geometrically, except in rare ties."""

Row = tuple[float, float, float, float]
"""Inequality (x, y, most, slack): x α + y β ≤ most."""


def within(tables: Tables, target: int, clock: Clock) -> tuple[Positions | None, bool]:
    """Return (positions, certain): positions with T ≤ target up to `TOLERANCE`, and True if the test was conclusive.

    ``(None, True)``: there are none. ``(positions, False)``: the best positions seen, whose T may be larger; the
    guesses of R converged too slowly.
    """
    if tables.problem.objective == "bottleneck":
        found = _least_round_trip(tables, target, 0.0, clock)
        return (None if found is None else found[1]), True
    guess, best = float(tables.least_round_trip), None
    for _ in range(GUESSES):
        found = _least_round_trip(tables, target, guess, clock)
        if found is None or found[0] > target * (1 + TOLERANCE):
            return None, True
        if found[0] <= guess + TOLERANCE * target:
            return found[1], True
        guess, best = found
    return best, False


def _least_round_trip(tables: Tables, target: int, guess: float, clock: Clock) -> tuple[float, Positions] | None:
    """Least R (0 for the bottleneck) and its positions, subject to e ≤ T − guess for the services bound."""
    # front: for each layer, the pieces of H on the boundary in front of stage s.
    n, slack = tables.problem.layers, TOLERANCE * target
    front = {0: [Piece(0, ((0.0, 0.0, 0.0),), None)]}
    for s in range(tables.problem.stages):
        reached: dict[int, list[Piece]] = {}
        for a, pieces in front.items():
            clock.check()
            for piece in pieces:
                for b, corners in _stage(tables, s, a, piece, target, guess):
                    reached.setdefault(b, []).append(Piece(b, corners, piece))
        front = {b: envelope(pieces, slack) for b, pieces in reached.items()}
    ends = [(piece.corners[0][1], piece.positions(0.0)) for piece in front.get(n, [])]
    return min(ends, default=None)


def _stage(
    tables: Tables, s: int, a: int, piece: Piece, target: int, guess: float
) -> list[tuple[int, tuple[tuple[float, float, float], ...]]]:
    """Every layer b in which stage s can end if it begins on ``piece``, with the corners of H there."""
    # A stage of more than ``most`` work cannot meet the target, nor can any longer one.
    n, final = tables.problem.layers, s == tables.problem.stages - 1
    fast = tables.fast[s]
    least = min(corner[1] for corner in piece.corners)
    most = tables.most(target, least, guess)
    found = []
    for b in (n,) if final else range(a, n + 1):
        if fast.load.sum(a, b, piece.high, 0.0) > most * (1 + TOLERANCE):
            break
        for sums in tables.ways(s, a, b):
            # For each linear part of the piece: the polygon of feasible (α, β), and its image (β, H, α).
            images: list[tuple[float, float, float]] = []
            for (u, hu, _), (v, hv, _) in pairwise(piece.corners) if len(piece.corners) > 1 else [piece.corners * 2]:
                slope = (hv - hu) / (v - u) if v > u else 0.0
                head = (hu - slope * u, slope)
                area = _area(tables.rows(s, a, b, sums, head, target, guess), u, v, a == b, b == n)
                for alpha, beta in area:
                    height = tables.ahead(s, a, b, sums, head, alpha, beta)
                    images.append((beta, height, alpha))
            if images:
                found.append((b, tuple(lower_hull(images))))
    return found


def _area(rows: list[Row], u: float, v: float, same: bool, last: bool) -> list[Point]:
    """Corners of the polygon of (α, β), u ≤ α ≤ v, within the rows. In the same layer β ≥ α; behind the last β = 0."""
    top = 0.0 if last else 1.0
    area: list[Point] = [(u, 0.0), (v, 0.0), (v, top), (u, top)]
    if same and not last:
        area = clip(area, 1.0, -1.0, 0.0, 0.0)
    for x, y, most, slack in rows:
        if not area:
            break
        area = clip(area, x, y, most, slack)
    return area


NAME = "exact"
SHORT = 1e-4
"""Length of an interval of uncertain targets, relative to the incumbent's value, below which it is not tested again."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    enough: int | None = None,
) -> Report[Positions]:
    """Minimise T to a whole unit; sums are computed in double precision (see `whole`).

    Parameters
    ----------
    problem : FractionalPartition
    limits : Limits
        ``workers`` and ``seed`` are not used.
    hint : positions, optional
        A solution to start from; ignored if it violates the memory limit.
    enough : int, optional
        Stop once the lower bound has reached this value.

    Raises
    ------
    ValueError
        If the problem has path cuts.
    """
    if problem.paths:
        raise ValueError("the exact method does not support path cuts, which couple distant stages; use cbc")
    bisection = _Bisection(problem, limits, hint)
    bracket, tables = bisection.bracket, Tables(problem)
    stop = Stop.OPTIMALITY
    target: int | None = bracket.low
    if enough is not None and bracket.low < enough <= problem.largest and not (bracket.high or enough) < enough:
        target = enough - 1
    # Without an incumbent the target rises in doubling steps; afterwards the bisection chooses it.
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
    """Choice of the next target from the outcomes of the tests so far.

    Attributes
    ----------
    untested : int
        Least target that may still be tested above the uncertain ones.
    uncertain : int or None
        Least target whose test was inconclusive.
    """

    def __init__(self, problem: FractionalPartition, limits: Limits, hint: Positions | None) -> None:
        self._problem = problem
        self.bracket = Bracket(self._value, limits)
        self.bracket.low = self.untested = problem.lower_bound()
        self.uncertain: int | None = None
        if hint is not None and problem.feasible(hint):
            self.bracket.offer(hint)

    def _value(self, positions: Positions) -> int:
        return max(self.bracket.low, whole(self._problem.evaluate(positions)))

    def learn(self, target: int, found: Positions | None, certain: bool) -> None:
        """Record the outcome of a test (see `within`); a certain solution counts as at most its target."""
        bracket = self.bracket
        if found is not None:
            found = tidy(self._problem, found)
            bracket.offer(found, min(self._value(found), target) if certain else None)
        if not certain:
            self.uncertain = target if self.uncertain is None else min(self.uncertain, target)
            self.untested = max(self.untested, target + 1)
        elif found is None:
            bracket.raise_low(target + 1)
            self.untested = max(self.untested, bracket.low)
            if self.uncertain is not None and self.uncertain < bracket.low:
                self.uncertain = None

    def next(self, gap: float) -> int | None:
        """Next target once there is an incumbent; None if the gap is closed or no further test can settle it."""
        low, high = self.bracket.low, self.bracket.high
        assert high is not None
        if self.bracket.closed:
            return None
        if high > self.untested:
            return (self.untested + high - 1) // 2
        if self.uncertain is not None and self.uncertain - low > max(gap, SHORT) * high:
            return (low + self.uncertain) // 2
        return None
