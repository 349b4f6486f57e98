"""The exact method: bisection on T, each target tested in closed form.

Bisection
---------
::

    proven impossible       doubted           not tested      possible
    ─────────────────┤ . . . . . . . . . ┤─────────────────├──────────▶ T
                    low     doubt       floor             high

A test may end in doubt. The bisection then goes on above the doubted targets, since an impossible one there settles all
below it; afterwards it goes on below them, until what is doubted is short.

One target T: which positions can each boundary have? (`within`)
---------------------------------------------------------------
For a stage from α in layer a to β in layer b every row of the problem is linear in (α, β), because every sum over the
stage is P[b] − P[a] − t_a α + t_b β. So the pairs that keep all rows form a convex polygon, and what they leave to the
rest, the least H over β, is the lower edge of the polygon's image:

::

    β │   ┌────╲                 H at b + β = (H at a + α) + w + 2 l
      │   │     ╲   rows
      │   └──────┘               least over α: the lower hull of the corners' images (β, H)
      └───────────── α

(5) compares R, known at the end only, with each stage's e. With a guess ρ of R it is a row of one stage, e ≤ T − ρ. The
least R that these rows allow grows with ρ, so that guesses which start below R and follow it come to the least one that
agrees with itself, or leave the target.
"""

from itertools import pairwise

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.fractional.instance import TOLERANCE, FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.pieces import Piece, Point, clip, envelope, lower_hull
from pipeplan_formulations.fractional.rounding import tidy
from pipeplan_formulations.fractional.tables import Tables

GUESSES = 40
"""Guesses of R in one test. They come close to the least one geometrically, but for rare ties."""

Row = tuple[float, float, float, float]
"""(x, y, most, slack): x α + y β ≤ most."""


def within(tables: Tables, target: int, clock: Clock) -> tuple[Positions | None, bool]:
    """Positions with T ≤ target (but for `TOLERANCE`), and whether that is certain.

    ``(None, True)``: there are none. ``(positions, False)``: these are the best seen, and their T may be larger; the
    guesses of R were moving too slowly to tell.
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
    """The least R (0 for the bottleneck) and its positions, where (5) has room T − guess."""
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
    """Every layer b in which stage s may end when it begins on ``piece``, with the corners of H there."""
    n, final = tables.problem.layers, s == tables.problem.stages - 1
    fast = tables.fast[s]
    least = min(corner[1] for corner in piece.corners)
    most = tables.most(target, least, guess)
    found = []
    for b in (n,) if final else range(a, n + 1):
        if fast.load.sum(a, b, piece.high, 0.0) > most * (1 + TOLERANCE):
            break
        for sums in tables.ways(s, a, b):
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
    """Corners of all (α, β) with u ≤ α ≤ v that keep the rows. In the same layer β ≥ α; behind the last β = 0."""
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
        See `pipeplan_formulations.common.report.Progress`.
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
        """Record the outcome of a test (see `within`); what it found counts as no more than its target."""
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
