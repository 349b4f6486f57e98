"""Pareto filters: points that no other point dominates."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED

Array = NDArray[np.int64]
Indices = NDArray[np.intp]

FEW = 16
"""Largest number of points for which plain Python is faster than arrays."""
BLOCK, CHUNK = 1024, 256
"""Numbers of points that are compared at once, and of kept points that they are compared with."""


def minimal(points: Sequence[tuple[int, ...]] | Array, check: Callable[[], None] = lambda: None) -> Indices:
    """Indices of the points that no other point dominates (at most as large in every column), in lexicographic order.

    Of equal points the first is kept. ``check`` is called between blocks of `BLOCK` points, and may raise.
    """
    if len(points) <= FEW:
        return np.array(_few(points.tolist() if isinstance(points, np.ndarray) else points), np.intp)
    points = np.asarray(points, np.int64)
    order = np.lexsort(points.T[::-1])  # only an earlier point can dominate a point
    points = points[order]
    if points.shape[1] == 3:
        return order[staircase_filter(np.zeros(len(points), np.int64), points[:, 1], -points[:, 2])]
    kept, before = [order[:0]], points[:0]
    for begin in range(0, len(points), BLOCK):
        check()
        block = points[begin : begin + BLOCK]
        left = np.arange(len(block))
        for end in range(len(before), 0, -CHUNK):  # the points kept last are near, and dominate most
            left = left[~_below(before[max(0, end - CHUNK) : end], block[left]).any(axis=0)]
        within = _below(block[left], block[left]) & np.tri(len(left), k=-1, dtype=np.bool_).T
        left = left[~within.any(axis=0)]
        kept.append(order[begin + left])
        before = np.concatenate([before, block[left]])
    return np.concatenate(kept)


def _below(lower: Array, upper: Array) -> NDArray[np.bool_]:
    """For each pair, True if the first point is at most as large as the second in every column."""
    below = np.ones((len(lower), len(upper)), np.bool_)
    for a, b in zip(lower.T, upper.T, strict=True):
        below &= a[:, None] <= b
    return below


def front(points: Array, check: Callable[[], None] = lambda: None) -> Array:
    """The distinct points that no other point dominates, in lexicographic order; for ``check`` see `minimal`.

    As it need not say which of equal points it keeps, two columns are sorted fast, by the first one only. What that
    leaves is sorted again, by both.
    """
    if len(points) < 2:
        return points
    if points.shape[1] > 2:
        return points[minimal(points, check)]
    points = points[np.argsort(points[:, 0])]
    points = points[_falls(points[:, -1])]
    points = points[np.lexsort(points.T[::-1])]
    return points[_falls(points[:, -1])]


def _falls(values: Array) -> NDArray[np.bool_]:
    """Mask of the values below all values before them."""
    falls = np.ones(len(values), np.bool_)
    falls[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return falls


def _few(points: Sequence[tuple[int, ...]]) -> list[int]:
    """`minimal` in plain Python."""
    if len(points) < 2:
        return list(range(len(points)))
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        if not any(all(a <= b for a, b in zip(points[k], points[i], strict=True)) for k in kept):
            kept.append(i)
    return kept


def undominated(groups: Array, first: Array, second: Array, third: Array | None = None) -> Indices:
    """Indices of the labels to keep, sorted by group, then by ``first``.

    ``first`` and ``second`` are better when smaller, ``third`` when larger.
    """
    if third is None or _one_value_each(groups, third):
        return _two(groups, first, second)
    # Filter labels of equal group and third number by the other two, then all labels of a group by all three.
    (_, own), (every, level) = (np.unique(each, return_inverse=True) for each in (groups, third))
    kept = _two(own * len(every) + level, first, second)
    order = kept[np.lexsort((-third[kept], second[kept], first[kept], groups[kept]))]
    return order[staircase_filter(groups[order], second[order], third[order])]


def _one_value_each(groups: Array, values: Array) -> bool:
    """True if all labels of a group have the same value."""
    order = np.argsort(groups, kind="stable")
    same = groups[order][1:] == groups[order][:-1]
    return not (same & (values[order][1:] != values[order][:-1])).any()


def _two(groups: Array, first: Array, second: Array) -> Indices:
    """`undominated` by two numbers."""
    order = _sieved(groups, first, second)
    groups, first, second = groups[order], first[order], second[order]
    # Sorted by group, then first: a label is kept if its second is below all earlier ones of its group.
    sort = np.lexsort((second, first, groups))
    _, group = np.unique(groups[sort], return_inverse=True)
    _, rank = np.unique(second[sort], return_inverse=True)
    # Later groups lie lower by more than any rank, so that one running minimum serves every group.
    return order[sort[_falls(rank - group * (len(sort) + 1))]]


def _sieved(groups: Array, first: Array, second: Array) -> Indices:
    """Indices of the labels left by a sort by group and ``first`` as one number, which is fast: few beside `_two`'s."""
    if len(groups) < BLOCK:
        return np.arange(len(groups))
    count, wide, high = (int(np.ptp(values)) + 1 for values in (groups, first, second))
    if count * max(wide, high) >= UNLIMITED:
        return np.arange(len(groups))
    group = groups - groups.min()
    order = np.argsort(group * wide + (first - first.min()))
    return order[_falls((second - group * high)[order])]


def staircase_filter(groups: Array, second: Array, third: Array) -> NDArray[np.bool_]:
    """Mask of the labels, sorted by group and ``first``, that no earlier one of their group dominates in the other two.

    ``second`` is better when smaller, ``third`` when larger. Each label is compared with a staircase of the earlier
    ones: seconds ascending, and thirds ascending with them.
    """
    kept = np.zeros(len(groups), np.bool_)
    group: int | None = None
    seconds: list[int] = []
    thirds: list[int] = []
    for i, (here, low, high) in enumerate(zip(groups.tolist(), second.tolist(), third.tolist(), strict=True)):
        if here != group:
            group, seconds, thirds = here, [], []
        place = bisect_right(seconds, low)
        if place and thirds[place - 1] >= high:
            continue
        kept[i] = True
        if place and seconds[place - 1] == low:
            place -= 1
        end = bisect_right(thirds, high, place)
        seconds[place:end], thirds[place:end] = [low], [high]
    return kept


def spread(groups: Array, most: int) -> NDArray[np.bool_]:
    """Mask of at most ``most`` members per group, evenly spread, with the first one; ``groups`` is sorted."""
    _, first, inverse, count = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    rank, size = np.arange(len(groups)) - first[inverse], count[inverse]
    chosen: NDArray[np.bool_] = (size <= most) | (rank * most // size != (rank - 1) * most // size)
    return chosen
