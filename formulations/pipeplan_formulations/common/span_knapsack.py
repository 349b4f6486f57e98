"""Range queries for many spans of layers at once: the largest entry, a fractional knapsack, and a greedy choice."""

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.layer_tables import distinct

Array = NDArray[np.int64]

RANKS = 1024
"""Number of ranks of cost per saving that are distinguished; the cheapest item of a rank represents all of it."""
ENTRIES = 2**22
"""Most entries of the sums over ranks and items: of very many items, fewer ranks are distinguished."""
LISTED, LONGEST = 96, 16
"""Most choices of a span whose whole items are listed, and its most items."""
LEVELS = 8
"""Number of levels of peaks that a greedy choice tries."""
BITS = 62
"""Most items that may differ from a knapsack of fractions."""
STATES = 1024
"""Most choices that are kept at once."""


class SpanLargest:
    """Sparse table for the largest entry of any span, which is covered by two runs of 1, 2, 4 … entries.

    ::

        values      3  1  4  1  5  9  2
        of four     4  5  9  9                span 1 … 6 = the larger of 1 … 5 (5) and 2 … 6 (9)

    Attributes
    ----------
    of_all : int
        The largest of all entries; 0 if there are none.
    """

    def __init__(self, values: Array) -> None:
        rows = [np.asarray(values, np.int64)]
        while 2 ** len(rows) <= len(values):
            row, step = rows[-1], 2 ** (len(rows) - 1)
            rows.append(np.append(np.maximum(row[:-step], row[step:]), row[-step:]))
        self.of_all = int(rows[0].max(initial=0))
        self._table = np.stack(rows)
        self._level = np.array([0, *(length.bit_length() - 1 for length in range(1, len(values) + 1))])

    def of(self, starts: Array | int, ends: Array | int) -> Array:
        """The largest of entries start … end − 1, at least one each."""
        level = self._level[np.subtract(ends, starts)]
        found: Array = np.maximum(self._table[level, starts], self._table[level, ends - (1 << level)])
        return found


class SpanKnapsack:
    """Fractional knapsack of any span: the least cost of saving a number of bytes, by sums of the cheapest ranks.

    Bisection finds the number of ranks that a span needs.

    ::

        rank      0  1  1  2  …        sums[g, i]   of the first g ranks among items 0 … i − 1
        item      4  0  7  2  …        a span's sum of g ranks is sums[g, end] − sums[g, start]

    Parameters
    ----------
    cost, savings : array of int, shape (n,)
        Items that save nothing are never taken.
    inside : array of bool, shape (n, sets), optional
        Nested sets of items instead of their first 0 … n ones: a span is then what lies between two of these.
    """

    def __init__(self, cost: Array, savings: Array, inside: NDArray[np.bool_] | None = None) -> None:
        # Useful items in the order of cost per saving, and the rank of each.
        useful = np.flatnonzero(savings > 0)
        ratio = cost[useful] / savings[useful]
        order = np.argsort(ratio, kind="stable")
        most = min(RANKS, len(order), max(ENTRIES // (len(cost) + 1), 1))
        ranks = np.arange(len(order)) * most // max(len(order), 1)
        count = int(ranks[-1]) + 1 if len(ranks) else 0
        first = np.flatnonzero(np.diff(ranks, prepend=-1))
        self._ratio = np.append(ratio[order[first]], 0.0)
        # Savings and cost: prefix sums over ranks and items.
        self._sums = []
        for values in (savings, cost):
            sums = np.zeros((count + 1, len(cost) + 1), np.int64)
            sums[ranks + 1, useful[order] + 1] = values[useful[order]]
            np.cumsum(sums, axis=0, out=sums)
            self._sums.append(
                np.cumsum(sums, axis=1, out=sums) if inside is None else sums[:, 1:] @ inside.astype(np.int64)
            )
        self._steps = [1 << bit for bit in reversed(range(count.bit_length()))]
        self._count = count

    def least(self, starts: Array, ends: Array, need: Array) -> NDArray[np.float64]:
        """Least cost of saving ``need`` with fractions of a span's items; infinite if all together save less."""
        savings, cost = self._sums
        # The number of whole ranks that save at most ``need``.
        taken = np.zeros(np.shape(need), np.int64)
        for step in self._steps:
            more = np.minimum(taken + step, self._count)
            inside = savings[more, ends] - savings[more, starts] <= need
            taken = np.where(inside, more, taken)
        # Their cost, and the rest at the ratio of the next rank.
        rest = need - (savings[taken, ends] - savings[taken, starts])
        whole = cost[taken, ends] - cost[taken, starts] + rest * self._ratio[taken]
        return np.where((taken == self._count) & (rest > 0), np.inf, whole)

    def whole(self, starts: Array, ends: Array, need: Array) -> Array:
        """Cost of the fewest whole ranks that save at least ``need``; −1 if all together save less."""
        savings, cost = self._sums
        # The number of ranks that save less than ``need``; one more suffices.
        taken = np.zeros(np.shape(need), np.int64)
        for step in self._steps:
            more = np.minimum(taken + step, self._count)
            taken = np.where(savings[more, ends] - savings[more, starts] < need, more, taken)
        enough = np.minimum(np.where(need > 0, taken + 1, 0), self._count)
        found: Array = cost[enough, ends] - cost[enough, starts]
        return np.where(savings[enough, ends] - savings[enough, starts] >= need, found, -1)


class ShortSpans:
    """The least cost of saving a number of bytes with whole items, of spans with few choices.

    A choice is listed if none costs less and saves as much. The lists of all spans stand behind each other::

        span        0 … 1       0 … 2             1 … 2       …
        savings     0  4        0  4  5  9        0  5        the first of them that is enough
        cost        0  3        0  3  4  7        0  4

    Parameters
    ----------
    cost, savings : array of int, shape (n,)
        Items that save nothing are never taken.
    """

    def __init__(self, cost: Array, savings: Array) -> None:
        self.longest = np.zeros(len(cost) + 1, np.int64)
        rows, ends = list[Array](), list[int]()
        self._first = np.zeros((len(cost) + 1, LONGEST + 1), np.int64)
        count = 0
        for start in range(len(cost)):
            own = np.zeros((2, 1), np.int64)
            for length in range(1, min(LONGEST, len(cost) - start) + 1):
                item = start + length - 1
                if savings[item]:
                    own = _undominated(np.hstack([own, own + np.array([[savings[item]], [cost[item]]])]))
                if own.shape[1] > LISTED:
                    break
                self.longest[start] = length
                self._first[start, length] = count
                rows.append(own)
                count += own.shape[1]
                ends.append(count)
        self._last = np.array([0, *ends])
        self._savings, self._cost = np.hstack([np.zeros((2, 1), np.int64), *rows])[:, 1:]
        self._ends = np.repeat(self._last[1:], np.diff(self._last))

    def least(self, starts: Array, ends: Array, need: Array) -> Array:
        """Least cost of saving ``need`` in each span up to its ``longest``; −1 if all items together save less."""
        low = self._first[starts, ends - starts]
        high = self._ends[low]
        last = high.copy()
        while (low < high).any():
            middle = (low + high) // 2
            enough = self._savings[np.minimum(middle, last - 1)] >= need
            low, high = np.where(enough | (low >= high), low, middle + 1), np.where(enough & (low < high), middle, high)
        return np.where(low < last, self._cost[np.minimum(low, last - 1)], -1)


def _undominated(choices: Array) -> Array:
    """Of rows (savings, cost) those that no other one dominates, by savings ascending."""
    order = np.lexsort((-choices[0], choices[1]))
    savings = np.maximum.accumulate(choices[0, order])
    found: Array = choices[:, order[np.append(True, savings[1:] > savings[:-1])]]
    return found


def greedy(cost: Array, savings: Array, peak: Array, workspace: int, in_flight: int, spare: int) -> Array | None:
    """Greedy choice of layers in a long span, as their indices, without a list of all choices; None if nothing fits.

    For a level of peaks, the layers up to it are taken in the order of cost per byte saved, until enough is saved. Then
    the last one is replaced by the cheapest that suffices. The best of a few levels is the choice. There is one
    whenever any set of layers fits.

    Parameters
    ----------
    cost, savings, peak : array of int, shape (n,)
        Numbers of each layer that may be chosen.
    workspace : int
        The peak if no layer is chosen.
    in_flight, spare : int
        A choice fits if its peak less ``in_flight`` times its savings is at most ``spare``.
    """
    if workspace <= spare:
        return np.zeros(0, np.int64)
    # By peak ascending: the savings that each level of peaks needs, and the levels whose layers save enough.
    order = np.argsort(peak, kind="stable")
    levels = np.maximum(peak[order], workspace)
    needs = -((spare - levels) // in_flight)
    enough = np.flatnonzero(np.cumsum(savings[order]) >= needs)
    if not len(enough):
        return None
    best: Array | None = None
    for last in distinct(enough[np.linspace(0, len(enough) - 1, LEVELS).astype(np.int64)]):
        members = order[: last + 1]
        chosen = members[_prefix(cost[members], savings[members], int(needs[last]))]
        if best is None or cost[chosen].sum() < cost[best].sum():
            best = chosen
    return best


def least_choice(
    cost: Array, savings: Array, peak: Array, workspace: int, in_flight: int, spare: int
) -> tuple[Array | None, bool]:
    """The layers of least cost that fit, as their indices, or None if nothing fits; and if no others cost less.

    The greedy choice is improved at each level of peaks where a knapsack of fractions costs less. Where more than
    `STATES` choices are left at once, some better one may be missed. Parameters are those of `greedy`.
    """
    best = greedy(cost, savings, peak, workspace, in_flight, spare)
    if best is None or not len(best):
        return best, True
    proved = True
    order = np.argsort(cost / savings, kind="stable")
    levels = distinct(peak)
    needs = -((spare - np.maximum(levels, workspace)) // in_flight)
    # For each level, sums over the layers up to it in the order of cost per byte, and the first that saves enough.
    inside = peak[order] <= levels[:, None]
    saved, spent = (np.where(inside, values[order], 0).cumsum(axis=1) for values in (savings, cost))
    last = (saved < needs[:, None]).sum(axis=1)
    for level in np.flatnonzero((last < len(order)) & (needs > 0)):
        ratio = float(cost[order[last[level]]] / savings[order[last[level]]])
        bound = spent[level, last[level]] - ratio * float(saved[level, last[level]] - needs[level])
        if bound < cost[best].sum() - 0.5:
            members = order[inside[level]]
            place = int(inside[level, : last[level]].sum())
            gap = int(cost[best].sum()) - bound
            found, complete = _flipped(cost[members], savings[members], place, int(needs[level]), gap)
            proved &= complete
            if found is not None and cost[members[found]].sum() < cost[best].sum():
                best = members[found]
    return best, proved


def _flipped(cost: Array, savings: Array, last: int, need: int, gap: float) -> tuple[Array | None, bool]:
    """Indices of the least cost that save ``need``, less than ``gap`` above the knapsack of fractions; None if none.

    The second value is False if some choices were left out.

    Items are in the order of cost per saving. The knapsack takes those before ``last`` and a part of it. Any other
    choice costs at least its bound, and for each item that it flips the distance from the ratio of ``last``.
    """
    distance = np.abs(cost - cost[last] / savings[last] * savings)
    taken = np.arange(len(cost)) < last
    near = np.flatnonzero(distance < gap)
    free = near[np.argsort(distance[near], kind="stable")[:BITS]]
    complete = len(free) == len(near)
    # States: cost, savings and distance of the flips so far, and the flipped items as bits.
    states = np.array([[cost[taken].sum()], [savings[taken].sum()], [0]])
    far = np.zeros(1)
    for bit, item in enumerate(free[::-1].tolist()):
        sign = -1 if taken[item] else 1
        other = states + np.array([[sign * cost[item]], [sign * savings[item]], [1 << bit]])
        close = far + distance[item] < gap
        states, far = np.hstack([states, other[:, close]]), np.append(far, far[close] + distance[item])
        # Only choices that save more than all cheaper ones.
        order = np.lexsort((-states[1], states[0]))
        most = np.maximum.accumulate(states[1, order])
        order = order[np.append(True, most[1:] > most[:-1])]
        if len(order) > STATES:
            complete = False
            order = np.sort(order[np.argsort(far[order], kind="stable")[:STATES]])
        states, far = states[:, order], far[order]
    enough = np.flatnonzero(states[1] >= need)
    if not len(enough):
        return None, complete
    flips = int(states[2, enough[states[0, enough].argmin()]])
    for bit, item in enumerate(free[::-1].tolist()):
        taken[item] ^= bool(flips >> bit & 1)
    return np.flatnonzero(taken), complete


def _prefix(cost: Array, savings: Array, need: int) -> Array:
    """Indices of layers that together save ``need``, in the order of cost per byte saved."""
    if need <= 0:
        return np.zeros(0, np.int64)
    order = np.argsort(cost / savings, kind="stable")
    saved = np.cumsum(savings[order])
    last = int(np.searchsorted(saved, need))
    rest = order[last:]
    suited = rest[savings[rest] >= need - (int(saved[last - 1]) if last else 0)]
    return np.append(order[:last], suited[cost[suited].argmin()])
