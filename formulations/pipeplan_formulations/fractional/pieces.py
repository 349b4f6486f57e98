"""Geometry of one boundary: convex polygons of shares, and the least H over the shares of a layer as convex pieces.

::

    y │   ·  ·                     clip: keep one side of a line       lower_hull: the lower part of the convex hull
      │ ·      ·
      │  ×────×                    (Sutherland and Hodgman, 1974)      (Andrew's monotone chain, 1979)
      └───────────── x

::

    H_s │ ╲      ╱                 a piece: convex, piecewise linear over an interval of shares θ of one layer; each
        │  ╲___ ╱   ╲__╱           corner also stores the share α at the previous boundary from which it was reached
        └──────────────── θ
          piece 1    piece 2       envelope: the parts of all pieces where they are the lowest
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
SAME = 1e-11
"""Corners of a hull with x closer than this count as one; the lower one is kept."""


def clip(polygon: list[Point], a: float, b: float, most: float, slack: float) -> list[Point]:
    """Part of a convex polygon where a x + b y ≤ most; corners that exceed it by at most ``slack`` are kept.

    Corners are in order around the polygon; a line segment has two corners, a point one. Empty if nothing is left.
    """
    over = [a * x + b * y - most for x, y in polygon]
    if max(over) <= slack:
        return polygon
    if min(over) > slack:
        return []
    kept: list[Point] = []
    for i, (point, distance) in enumerate(zip(polygon, over, strict=True)):
        before, last = polygon[i - 1], over[i - 1]
        if (distance <= slack) != (last <= slack) and abs(distance - last) > slack:
            share = min(1.0, max(0.0, last / (last - distance)))
            kept.append((before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])))
        if distance <= slack:
            kept.append(point)
    return kept


def lower_hull(points: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Corners (x, y, data) of the lower convex hull, by ascending x."""
    hull: list[tuple[float, float, float]] = []
    for point in sorted(points):
        if hull and point[0] - hull[-1][0] < SAME:
            if point[1] >= hull[-1][1]:
                continue
            hull.pop()
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _turns_down(a: tuple[float, float, float], b: tuple[float, float, float], c: tuple[float, float, float]) -> bool:
    """True if b lies on or above the line from a to c."""
    return (b[0] - a[0]) * (c[1] - a[1]) <= (c[0] - a[0]) * (b[1] - a[1])


Corner = tuple[float, float, float]
"""Tuple (θ, H, α)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """H as a function of the share θ of layer ``layer``; ``corners`` by ascending θ, a single one for a single point.

    ``before`` is the piece on the previous boundary to which the corners' α refer; None at position 0.
    """

    layer: int
    corners: tuple[Corner, ...]
    before: "Piece | None"

    @property
    def low(self) -> float:
        """Least θ."""
        return self.corners[0][0]

    @property
    def high(self) -> float:
        """Largest θ."""
        return self.corners[-1][0]

    def at(self, share: float) -> Corner:
        """Point of the piece at θ = ``share``, which lies between ``low`` and ``high``."""
        corners = self.corners
        i = min(bisect_right(corners, share, key=lambda corner: corner[0]), len(corners) - 1)
        if i == 0:
            return corners[0]
        (x0, y0, z0), (x1, y1, z1) = corners[i - 1], corners[i]
        part = min(1.0, max(0.0, (share - x0) / (x1 - x0)))
        return share, y0 + part * (y1 - y0), z0 + part * (z1 - z0)

    def between(self, low: float, high: float) -> "Piece":
        """Restriction of the piece to a part of its interval."""
        inner = [corner for corner in self.corners if low < corner[0] < high]
        return Piece(self.layer, (self.at(low), *inner, self.at(high)), self.before)

    def positions(self, share: float) -> tuple[float, ...]:
        """Positions of all boundaries up to this one, if this one lies at ``share`` of its layer."""
        found = []
        piece: Piece | None = self
        while piece is not None:
            found.append(piece.layer + share)
            share, piece = piece.at(share)[2], piece.before
        return tuple(reversed(found))


def envelope(pieces: list[Piece], slack: float) -> list[Piece]:
    """Lower envelope: few pieces with the same least H at every θ; differences up to ``slack`` are ignored.

    All pieces lie on one layer. Between two neighbouring corners of any of them every piece is a straight line or
    absent. The lowest lines are followed from left to right.
    """
    if len(pieces) < 2:
        return pieces
    # runs: (piece, low, high), the intervals on which a piece is the lowest.
    edges = sorted({corner[0] for piece in pieces for corner in piece.corners})
    runs: list[tuple[Piece, float, float]] = []
    for left, right in pairwise(edges):
        there = [piece for piece in pieces if piece.low <= left and right <= piece.high and piece.low < piece.high]
        x = left
        while there and x < right:
            piece = _lowest(there, x, right, slack, runs[-1][0] if runs else None)
            end = _overtaken(piece, there, x, right, slack)
            if runs and runs[-1][0] is piece and runs[-1][2] == x:
                runs[-1] = (piece, runs[-1][1], end)
            else:
                runs.append((piece, x, end))
            x = end
    # Add pieces of a single point that lie below the runs.
    kept = [piece.between(low, high) for piece, low, high in runs]
    for piece in pieces:
        if piece.low == piece.high and not any(
            other.low <= piece.low <= other.high and other.at(piece.low)[1] <= piece.corners[0][1] + slack
            for other in kept
        ):
            kept.append(piece)
    return kept


def _lowest(there: list[Piece], x: float, right: float, slack: float, last: Piece | None) -> Piece:
    """Piece that is lowest just right of x; ``last`` if it is as low."""
    heights = {id(piece): (piece.at(x)[1], piece.at(right)[1]) for piece in there}
    most = min(height[0] for height in heights.values()) + slack
    low = [piece for piece in there if heights[id(piece)][0] <= most]
    best = min(low, key=lambda piece: heights[id(piece)][1])
    for piece in low:
        if piece is last and heights[id(piece)][1] <= heights[id(best)][1] + slack:
            return piece
    return best


def _overtaken(piece: Piece, there: list[Piece], x: float, right: float, slack: float) -> float:
    """First θ right of x where another line falls below this piece; ``right`` if none does by more than ``slack``."""
    here, there_ = piece.at(x)[1], piece.at(right)[1]
    end = right
    for other in there:
        start, finish = other.at(x)[1], other.at(right)[1]
        if other is piece or finish >= there_ - slack or start - here <= slack:
            continue
        crossing = x + (right - x) * (start - here) / ((start - here) + (there_ - finish))
        if x < crossing < end:
            end = crossing
    return end
