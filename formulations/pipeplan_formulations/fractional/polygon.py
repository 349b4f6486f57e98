"""Convex polygons in the plane: clipping, and the lower edge of their shadow.

::

    y │   ·  ·                     clip: keep the side of a line       lower_hull: what is seen from below
      │ ·      ·
      │  ×────×                    (Sutherland and Hodgman, 1974)      (Andrew's monotone chain, 1979)
      └───────────── x
"""

from collections.abc import Sequence

Point = tuple[float, float]
SAME = 1e-11
"""Corners of a hull that are nearer than this stand above one another, and the lower one stays."""


def clip(polygon: list[Point], a: float, b: float, most: float, slack: float) -> list[Point]:
    """The part of a convex polygon where a x + b y ≤ most; what exceeds it by at most ``slack`` counts as on the line.

    Corners come in order around the polygon; a line segment has two corners, a point one. Empty if nothing is left.
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
    """The corners (x, y, anything) from which the convex hull is seen from below, by ascending x."""
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
    """Whether b lies on or above the line from a to c."""
    return (b[0] - a[0]) * (c[1] - a[1]) <= (c[0] - a[0]) * (b[1] - a[1])
