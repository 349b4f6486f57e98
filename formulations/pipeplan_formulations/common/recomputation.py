r"""Recomputation of layers: sets of least work that make the memory of a stage fit.

A layer that is recomputed holds its output instead of what it saved, from its forward to its backward; it runs its
forward once more inside its backward, and while that runs, all it saves is there besides its workspace. With k
micro-batches in flight, a set X of recomputed layers of a stage fits if

    max( max_l workspace_l,  max_{l ∈ X} (saved_l + workspace_l) )  −  k Σ_{l ∈ X} (saved_l − output_l)  ≤  spare,

``spare`` being the stage's limit less what stays (resident bytes, and k times all that is saved and received). Sought
is the X of least Σ forward; of those, one with the fewest layers. What X means to memory is two numbers, its savings
and its peak, so a stage has a Pareto list of (cost, savings, peak):

::

    savings │             ○ ──    ○  all layers of peak at most p       each peak p has its staircase; k and spare
            │       × ────        ×  a cheaper choice                   say how high one must climb at that peak:
            │  × ──                                                     the first choice that is high enough is the best
            └──────────────── cost

Lists grow layer by layer. Layers with equal numbers are interchangeable, so stages that hold as many of each sort share
one list, and a chain of equal layers needs only n lists of at most n + 1 entries. A list that outgrows `CAP` is thinned
out: its choices remain choices, but the least cost is then only known to lie between that of the fractional knapsack
and theirs. Crowded spans have no list at all, but a greedy choice (`common.span_knapsack.greedy`).
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.common.pareto import staircase_filter
from pipeplan_formulations.common.span_knapsack import SpanKnapsack, SpanLargest, greedy
from pipeplan_formulations.common.span_options import IMPOSSIBLE, OptionPoints, SpanOptions

Array = NDArray[np.int64]

CAP = 512
"""Longest list that is kept in full."""
RANGES = 8
"""Ranges of peaks that a bound tells apart."""
CROWD = 48
"""A span of more layers than this, in a chain of more sorts, is crowded: it has no list, which would take long."""


@dataclass(frozen=True)
class _Sort:
    """The numbers of a layer that matter here; layers that share them are interchangeable."""

    cost: int
    savings: int
    peak: int


@dataclass(frozen=True)
class _Curve:
    """Choices that none dominates, by (cost, layers) ascending, and how each came about.

    Attributes
    ----------
    cost, layers, savings, peak : array of int, shape (choices,)
    origin : array of int, shape (choices,)
        Index of the choice in ``before`` that this one extends; those from ``len(before)`` on also take the new layer.
    sorts : mapping from sort to number of layers
    exact : bool
        Whether no choice was thinned out.
    """

    cost: Array
    layers: Array
    savings: Array
    peak: Array
    origin: Array
    before: "_Curve | None" = None
    added: _Sort | None = None
    sorts: Counter[_Sort] = field(default_factory=Counter)
    exact: bool = True

    @cached_property
    def fractional(self) -> list[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
        """For each of a few ranges of peaks: its least peak, and the corners (savings, cost) of a fractional knapsack.

        The knapsack holds all layers up to the largest peak of the range: cheaper than any choice whose peak is in it.
        """
        order = sorted(self.sorts.items(), key=lambda item: item[0].cost / item[0].savings)
        peaks = np.array([sort.peak for sort, _ in order])
        savings = np.array([float(sort.savings * count) for sort, count in order])
        cost = np.array([float(sort.cost * count) for sort, count in order])
        found = [(0, np.zeros(1), np.zeros(1))]
        for levels in np.array_split(np.unique(peaks), RANGES):
            if len(levels):
                below = peaks <= levels[-1]
                corners = [np.concatenate([[0.0], numbers[below].cumsum()]) for numbers in (savings, cost)]
                found.append((int(levels[0]), corners[0], corners[1]))
        return found

    def extended(self, sort: _Sort) -> "_Curve":
        """The choices with one more layer at hand."""
        cost = np.concatenate([self.cost, self.cost + sort.cost])
        layers = np.concatenate([self.layers, self.layers + 1])
        savings = np.concatenate([self.savings, self.savings + sort.savings])
        peak = np.concatenate([self.peak, np.maximum(self.peak, sort.peak)])
        order = np.lexsort((peak, -savings, layers, cost))
        order = order[staircase_filter(np.zeros_like(order), peak[order], savings[order])]
        sorts = self.sorts + Counter([sort])
        every = _Curve(cost[order], layers[order], savings[order], peak[order], order, self, sort, sorts, self.exact)
        return every if len(order) <= CAP else every.thinned()

    def thinned(self) -> "_Curve":
        """About `CAP` choices, evenly spread by what they save, each the closest around to the fractional knapsack.

        Of each peak the one that saves most stays too, so that what can fit still can.
        """
        _, savings, cost = self.fractional[-1]
        above = self.cost - np.interp(self.savings, savings, cost)
        place = self.savings.argsort(kind="stable").argsort(kind="stable") * CAP // len(self.cost)
        order = np.lexsort((above, place))
        kept = np.zeros(len(order), np.bool_)
        kept[order[np.flatnonzero(np.diff(place[order], prepend=-1))]] = True
        kept[0] = True  # the choice of nothing
        for level in np.unique(self.peak):
            below = np.flatnonzero(self.peak <= level)
            kept[below[int(self.savings[below].argmax())]] = True
        fewer = replace(
            self,
            cost=self.cost[kept],
            layers=self.layers[kept],
            savings=self.savings[kept],
            peak=self.peak[kept],
            origin=self.origin[kept],
            exact=False,
        )
        fewer.__dict__["fractional"] = self.fractional  # which depends on the sorts only
        return fewer

    def taken(self, choice: int) -> Counter[_Sort]:
        """How many layers of each sort a choice recomputes."""
        found: Counter[_Sort] = Counter()
        curve = self
        while curve.before is not None:
            assert curve.added is not None
            choice = int(curve.origin[choice])
            if choice >= len(curve.before.cost):
                found[curve.added] += 1
                choice -= len(curve.before.cost)
            curve = curve.before
        return found


class Recomputation(SpanOptions):
    """Recomputation as options of a stage, on devices where a forward takes ``forward``.

    Parameters
    ----------
    forward, savings, workspace, again : array of int, shape (n,)
        Nanoseconds of a forward; bytes that recomputation saves for each micro-batch in flight; bytes needed while the
        layer computes, as it stands and recomputed.
    recomputable : array of bool, shape (n,)
        A layer that saves nothing is never recomputed.
    """

    def __init__(
        self, forward: Array, savings: Array, workspace: Array, again: Array, recomputable: NDArray[np.bool_]
    ) -> None:
        self.workspace = SpanLargest(workspace)
        useful = recomputable & (savings > 0)
        self._sorts = [
            _Sort(int(forward[i]), int(savings[i]), int(again[i])) if useful[i] else None for i in range(len(forward))
        ]
        self._all_sorts = len({sort for sort in self._sorts if sort is not None})
        self._cost, self._savings = np.where(useful, forward, 0), np.where(useful, savings, 0)
        self._peaks = np.where(useful, again, 0)
        nothing = np.zeros(1, np.int64)
        empty = _Curve(nothing, nothing, nothing, nothing, nothing)
        self._curves: dict[frozenset[tuple[_Sort, int]], _Curve] = {frozenset(): empty}
        self._of_span: list[list[_Curve]] = [[empty] for _ in self._sorts]

    def points(self, start: int, end: int) -> OptionPoints:
        """Sets of layers to recompute, by (cost, layers); a list that was thinned out has some of them."""
        curve = self._curve(start, end)
        peak = np.maximum(curve.peak, self._largest_workspace(start, end))
        return OptionPoints(curve.cost[None], np.zeros_like(peak), -curve.savings, peak)

    def least(self, start: int, end: int, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """As in `SpanOptions`; floor and cost are equal unless a list was thinned out, or there is none."""
        if self._crowd(start, end):
            found = [self._greedy(start, end, int(k), int(room)) for k, room in zip(in_flight, spare, strict=True)]
            costs = [IMPOSSIBLE if chosen is None else int(self._cost[chosen].sum()) for chosen in found]
            cost = np.array(costs, np.int64)
            return np.minimum(self.quick_lower_bound(start, end, in_flight, spare), cost), cost
        curve = self._curve(start, end)
        cost, _ = self.points(start, end).cheapest(in_flight, spare)
        if curve.exact:
            return cost, cost
        work = self._largest_workspace(start, end)
        floor = cost.astype(np.float64)
        for peak, savings, price in curve.fractional:
            need = np.maximum(-((spare - max(work, peak)) // in_flight), 0).astype(np.float64)
            np.minimum(floor, np.interp(need, savings, price, right=np.inf), out=floor)
        # Rounded down by more than a double can be wrong.
        down = np.floor(floor * (1 - 1e-12)).astype(np.int64)
        return np.where(cost == IMPOSSIBLE, IMPOSSIBLE, np.minimum(down, cost)), cost

    def crowded(self, starts: Array, ends: Array) -> NDArray[np.bool_]:
        """Whether spans may hold so many sorts of layers that they have no lists."""
        crowd: NDArray[np.bool_] = ends - starts > (CROWD if self._all_sorts > CROWD else len(self._sorts))
        return crowd

    def _crowd(self, start: int, end: int) -> bool:
        return end - start > CROWD and self._all_sorts > CROWD

    def _greedy(self, start: int, end: int, in_flight: int, spare: int) -> Array | None:
        """The layers of a choice that fits, if any does."""
        places = start + np.flatnonzero(self._savings[start:end])
        cost, savings, peaks = self._cost[places], self._savings[places], self._peaks[places]
        chosen = greedy(cost, savings, peaks, self._largest_workspace(start, end), in_flight, spare)
        return None if chosen is None else np.sort(places[chosen])

    def content(self, start: int, end: int) -> tuple[int, int]:
        """The list of a span, by number, and its largest workspace."""
        same = -1 - start * (len(self._sorts) + 1) - end if self._crowd(start, end) else id(self._curve(start, end))
        return same, self._largest_workspace(start, end)

    def quick_lower_bound(self, starts: Array | int, ends: Array | int, in_flight: Array, spare: Array) -> Array:
        """The fractional knapsack, whatever the peaks, without any list."""
        need = np.maximum(-((spare - self.workspace.of(starts, ends)) // in_flight), 0)
        floor = self._knapsack.least(*np.broadcast_arrays(starts, ends, need))
        # Rounded down by more than a double can be wrong.
        down: Array = np.floor(np.minimum(floor, IMPOSSIBLE) * (1 - 1e-12)).astype(np.int64)
        return np.where(np.isinf(floor), IMPOSSIBLE, down)

    @cached_property
    def _knapsack(self) -> SpanKnapsack:
        return SpanKnapsack(self._cost, self._savings)

    def fewest_bytes(self, starts: Array, ends: Array, in_flight: Array) -> Array:
        """As in `SpanOptions`: if layers of peak p may be recomputed, all others of that peak or less may be too."""
        workspace = self.workspace.of(starts, ends)
        best: Array = workspace
        for peak, savings in self._levels:
            best = np.minimum(best, np.maximum(workspace, peak) - in_flight * (savings[ends] - savings[starts]))
        return best

    @cached_property
    def _levels(self) -> list[tuple[int, Array]]:
        """For each peak p of a recomputed layer: p, and what all layers of peak at most p save, summed along layers."""
        useful = self._savings > 0
        return [
            (int(p), sums_before(np.where(useful & (self._peaks <= p), self._savings, 0)))
            for p in np.unique(self._peaks[useful])
        ]

    def choose(self, start: int, end: int, in_flight: int, spare: int) -> tuple[int, ...] | None:
        """The layers to recompute, in order; of layers with equal numbers the first."""
        if self._crowd(start, end):
            layers_chosen = self._greedy(start, end, in_flight, spare)
            return None if layers_chosen is None else tuple(layers_chosen.tolist())
        curve = self._curve(start, end)
        cost, choice = self.points(start, end).cheapest(np.array([in_flight]), np.array([spare]))
        if cost[0] == IMPOSSIBLE:
            return None
        taken = curve.taken(int(choice[0]))
        layers = []
        for layer in range(start, end):
            sort = self._sorts[layer]
            if sort is not None and taken[sort] > 0:
                taken[sort] -= 1
                layers.append(layer)
        return tuple(layers)

    def _largest_workspace(self, start: int, end: int) -> int:
        return int(self.workspace.of(start, end)) if end > start else 0

    def _curve(self, start: int, end: int) -> _Curve:
        known = self._of_span[start]
        while len(known) <= end - start:
            sort = self._sorts[start + len(known) - 1]
            curve = known[-1]
            if sort is not None:
                key = frozenset((curve.sorts + Counter([sort])).items())
                curve = self._curves.get(key) or self._curves.setdefault(key, curve.extended(sort))
            known.append(curve)
        return known[end - start]


def shared_recomputation(
    forward: Array, savings: Array, workspace: Array, again: Array, recomputable: NDArray[np.bool_]
) -> Recomputation:
    """The `Recomputation` of these rows; problems that differ in depth, replicas or memory only share its lists.

    A search looks at a dozen micro-batch sizes and a few kinds of device in turn, and the lists take long to make.
    """
    rows = (row.astype(np.int64).tobytes() for row in (forward, savings, workspace, again))
    return _recomputation(*rows, recomputable.tobytes())


@lru_cache(maxsize=64)
def _recomputation(forward: bytes, savings: bytes, workspace: bytes, again: bytes, useful: bytes) -> Recomputation:
    rows = [np.frombuffer(row, np.int64) for row in (forward, savings, workspace, again)]
    return Recomputation(rows[0], rows[1], rows[2], rows[3], np.frombuffer(useful, np.bool_))
