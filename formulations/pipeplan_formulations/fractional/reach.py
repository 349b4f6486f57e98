"""One target T: which positions can each boundary have? Polygons over (stage, pair of layers), in closed form.

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

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.fractional.instance import TOLERANCE, Positions
from pipeplan_formulations.fractional.pieces import Piece, envelope
from pipeplan_formulations.fractional.polygon import Point, clip, lower_hull
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
