r"""Recomputation of layers: sets of least work that make the memory of a stage fit.

A recomputed layer holds its output instead of what it saved, from its forward to its backward. It repeats its forward
inside its backward, and while that runs, it holds all its saved bytes besides its workspace. With k micro-batches in
flight, a set X of recomputed layers of a stage fits if

    max( max_l workspace_l,  max_{l ∈ X} (saved_l + workspace_l) )  −  k Σ_{l ∈ X} (saved_l − output_l)  ≤  spare,

where ``spare`` is the stage's limit less the bytes that stay (resident bytes, and k times all bytes saved and
received). The problem is to find the X of least Σ forward and, of those, one with the fewest layers. Memory depends on
X by two numbers, its savings and its peak, so a stage has a Pareto list of (cost, savings, peak):

::

    savings │             ○ ──    ○  all layers of peak at most p       a staircase for each peak p; k and spare
            │       × ────        ×  a cheaper choice                   give the savings that are needed at that peak:
            │  × ──                                                     the first choice with at least those is the best
            └──────────────── cost

Lists are built layer by layer. Layers with equal numbers are interchangeable, so stages with equal numbers of layers of
each sort share one list. A chain of equal layers needs only n lists of at most n + 1 entries. A list longer than `CAP`
is thinned out: its choices remain valid, but the least cost is then only known to lie between that of the fractional
knapsack and theirs. Crowded spans have no list. Where no full list is kept, a branch-and-bound from the fractional
knapsack chooses the layers (`common.span_knapsack.least_choice`).
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.layer_tables import distinct, sums_before
from pipeplan_formulations.common.pareto import staircase_filter
from pipeplan_formulations.common.span_knapsack import ShortSpans, SpanKnapsack, SpanLargest, least_choice
from pipeplan_formulations.common.span_options import IMPOSSIBLE, OptionPoints, SpanOptions

Array = NDArray[np.int64]

CAP = 512
"""Length of the longest list that is kept in full."""
RANGES = 8
"""Number of ranges of peaks that a bound distinguishes."""
MOST_AT_ONCE = 2**20
"""Most numbers of one numpy operation over peaks and spans."""
FEW_SPANS, SMALL_TABLE, LARGEST_TABLE = 16, 2**20, 2**24
"""For so few spans no table of peaks x layers is made if it has more entries than this; larger ones are not kept."""
MOST_CHOSEN = 2**14
"""Most choices without a full list that are kept."""
CROWD = 48
"""A span of more layers than this, in a chain of more sorts than this, is crowded: its list would take too long."""
SHORT, EFFORT = 12, 3072
"""In long chains fewer are enough, but never less than `SHORT`: `EFFORT` is the layers of the chain times this number.

A knapsack of fractions is off by at most one layer, so that the longer a span, the less its list adds.
"""


@dataclass(frozen=True)
class _Sort:
    """Cost, savings and peak of a layer; layers with the same numbers are interchangeable."""

    cost: int
    savings: int
    peak: int


@dataclass(frozen=True)
class _Curve:
    """Pareto list of choices, by (cost, layers) ascending, and the choice that each extends.

    Attributes
    ----------
    cost, layers, savings, peak : array of int, shape (choices,)
    origin : array of int, shape (choices,)
        Index of the choice in ``before`` that this one extends; those from ``len(before)`` on also take the new layer.
    sorts : mapping from sort to number of layers
    exact : bool
        True if no choice was thinned out.
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

        The knapsack may use all layers up to the largest peak of the range, so it costs at most as much as any choice
        whose peak is in the range.
        """
        order = sorted(self.sorts.items(), key=lambda item: item[0].cost / item[0].savings)
        peaks = np.array([sort.peak for sort, _ in order])
        savings = np.array([float(sort.savings * count) for sort, count in order])
        cost = np.array([float(sort.cost * count) for sort, count in order])
        found = [(0, np.zeros(1), np.zeros(1))]
        for levels in np.array_split(distinct(peaks), RANGES):
            if len(levels):
                below = peaks <= levels[-1]
                corners = [np.concatenate([[0.0], numbers[below].cumsum()]) for numbers in (savings, cost)]
                found.append((int(levels[0]), corners[0], corners[1]))
        return found

    def extended(self, sort: _Sort) -> "_Curve":
        """The list with one more layer available."""
        # Every choice without and with the new layer, then their Pareto set.
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
        """About `CAP` choices, evenly spread by their savings, each the closest of its part to the fractional knapsack.

        For each peak the choice of the largest savings is kept too, so that every span that can fit still does.
        """
        # Distance to the knapsack, and part by rank of savings; the closest choice of each part is kept.
        _, savings, cost = self.fractional[-1]
        above = self.cost - np.interp(self.savings, savings, cost)
        place = self.savings.argsort(kind="stable").argsort(kind="stable") * CAP // len(self.cost)
        order = np.lexsort((above, place))
        kept = np.zeros(len(order), np.bool_)
        kept[order[np.flatnonzero(np.diff(place[order], prepend=-1))]] = True
        kept[0] = True  # the choice of nothing
        for level in distinct(self.peak):
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
        fewer.__dict__["fractional"] = self.fractional  # it depends only on the sorts
        return fewer

    def taken(self, choice: int) -> Counter[_Sort]:
        """Number of layers of each sort that a choice recomputes."""
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
    """Recomputation as options of a stage, for devices of one kind.

    Parameters
    ----------
    forward, savings, workspace, again : array of int, shape (n,)
        Nanoseconds of a forward; bytes that recomputation saves per micro-batch in flight; bytes needed while the layer
        computes, not recomputed and recomputed.
    recomputable : array of bool, shape (n,)
        Layers that may be recomputed; one that saves nothing never is.
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
        self._chosen: dict[tuple[int, int, int, int], tuple[int, ...] | None] = {}
        self._of_span: list[list[_Curve]] = [[empty] for _ in self._sorts]

    def points(self, start: int, end: int) -> OptionPoints:
        """Sets of layers to recompute, by (cost, layers); only some of them if the list was thinned out."""
        curve = self._curve(start, end)
        peak = np.maximum(curve.peak, self._largest_workspace(start, end))
        return OptionPoints(curve.cost[None], np.zeros_like(peak), -curve.savings, peak)

    def least(self, start: int, end: int, in_flight: Array, spare: Array) -> tuple[Array, Array]:
        """As in `SpanOptions`; bound and cost are equal unless the list was thinned out, or there is none."""
        if self._crowd(start, end):
            each = zip(in_flight.tolist(), spare.tolist(), strict=True)
            cost = np.array([self.chosen_time(start, end, k, room) for k, room in each], np.int64)
            return np.minimum(self.quick_lower_bound(start, end, in_flight, spare), cost), cost
        curve = self._curve(start, end)
        cost, _ = self.points(start, end).cheapest(in_flight, spare)
        if curve.exact:
            return cost, cost
        work = self._largest_workspace(start, end)
        # Thinned list: the least fractional knapsack over the ranges of peaks, for the savings that each needs.
        bound = cost.astype(np.float64)
        for peak, savings, price in curve.fractional:
            need = np.maximum(-((spare - max(work, peak)) // in_flight), 0).astype(np.float64)
            np.minimum(bound, np.interp(need, savings, price, right=np.inf), out=bound)
        # Rounded down by more than a double can be wrong.
        down = np.floor(bound * (1 - 1e-12)).astype(np.int64)
        return np.where(cost == IMPOSSIBLE, IMPOSSIBLE, np.minimum(down, cost)), cost

    def crowded(self, starts: Array, ends: Array) -> NDArray[np.bool_]:
        """True for spans that may have so many sorts of layers that they get no list."""
        longest = self._longest_listed
        crowd: NDArray[np.bool_] = ends - starts > (longest if self._all_sorts > longest else len(self._sorts))
        return crowd

    def _crowd(self, start: int, end: int) -> bool:
        return end - start > self._longest_listed < self._all_sorts

    @property
    def _longest_listed(self) -> int:
        """Layers of the longest span that gets a list however many sorts of layers there are."""
        return min(CROWD, max(SHORT, EFFORT // len(self._sorts)))

    def _found(self, start: int, end: int, in_flight: int, spare: int) -> Array | None:
        """The layers of a choice that fits, without a list; None if none does."""
        places = start + np.flatnonzero(self._savings[start:end])
        cost, savings, peaks = self._cost[places], self._savings[places], self._peaks[places]
        chosen, _ = least_choice(cost, savings, peaks, self._largest_workspace(start, end), in_flight, spare)
        return None if chosen is None else np.sort(places[chosen])

    def content(self, start: int, end: int) -> tuple[int, int]:
        """A number of the span's list, and the span's largest workspace."""
        same = -1 - start * (len(self._sorts) + 1) - end if self._crowd(start, end) else id(self._curve(start, end))
        return same, self._largest_workspace(start, end)

    def quick_lower_bound(self, starts: Array | int, ends: Array | int, in_flight: Array, spare: Array) -> Array:
        """The cost of the fractional knapsack without regard to peaks, which needs no list."""
        need = np.maximum(-((spare - self.workspace.of(starts, ends)) // in_flight), 0)
        return self._fractional(*np.broadcast_arrays(starts, ends, need))

    def _fractional(self, starts: Array, ends: Array, need: Array) -> Array:
        bound = self._knapsack.least(starts, ends, need)
        # Rounded down by more than a double can be wrong.
        down: Array = np.floor(np.minimum(bound, IMPOSSIBLE) * (1 - 1e-12)).astype(np.int64)
        return np.where(np.isinf(bound), IMPOSSIBLE, down)

    def closer_lower_bound(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> Array:
        """The same with the least peak of a recomputed layer, and with whole layers in spans of few choices."""
        workspace = self.workspace.of(starts, ends)
        peak = np.maximum(workspace, -self._negative_peak.of(starts, ends))
        need = np.where(workspace <= spare, 0, -((spare - peak) // in_flight))
        short = ends - starts <= self._short.longest[starts]
        found = np.zeros_like(need)
        found[~short] = self._fractional(starts[~short], ends[~short], np.maximum(need[~short], 0))
        whole = self._short.least(starts[short], ends[short], need[short])
        found[short] = np.where(whole < 0, IMPOSSIBLE, whole)
        return found

    @cached_property
    def _short(self) -> ShortSpans:
        return ShortSpans(self._cost, self._savings)

    @cached_property
    def _negative_peak(self) -> SpanLargest:
        """Minus the least peak of a layer that may be recomputed."""
        return SpanLargest(np.where(self._savings > 0, -self._peaks, -IMPOSSIBLE))

    def quick_upper_bound(self, starts: Array, ends: Array, in_flight: Array, spare: Array) -> Array:
        """The cost of whole layers in the order of cost per byte saved, with the largest peak of any of them."""
        peak = np.maximum(self.workspace.of(starts, ends), self._largest_peak.of(starts, ends))
        need = np.maximum(-((spare - peak) // in_flight), 0)
        cost = self._knapsack.whole(*np.broadcast_arrays(starts, ends, need))
        unchanged = self.workspace.of(starts, ends) <= spare
        return np.where(unchanged, 0, np.where(cost < 0, IMPOSSIBLE, cost))

    @cached_property
    def _largest_peak(self) -> SpanLargest:
        return SpanLargest(self._peaks)

    @cached_property
    def _knapsack(self) -> SpanKnapsack:
        return SpanKnapsack(self._cost, self._savings)

    def fewest_bytes(self, starts: Array, ends: Array, in_flight: Array) -> Array:
        """As in `SpanOptions`. At each peak p, all layers of peak at most p are recomputed, which saves the most."""
        starts, ends, in_flight = np.broadcast_arrays(starts, ends, in_flight)
        workspace = self.workspace.of(starts, ends)
        if workspace.size <= FEW_SPANS and len(self._levels) * len(self._sorts) > SMALL_TABLE:
            spans = zip(*(each.ravel().tolist() for each in (starts, ends, in_flight, workspace)), strict=True)
            return np.array([self._fewest(*span) for span in spans], np.int64).reshape(workspace.shape)
        best: Array = workspace
        many = max(MOST_AT_ONCE // max(workspace.size, len(self._sorts)), 1)
        for low in range(0, len(self._levels), many):
            level = slice(low, low + many)
            peak = self._levels[level].reshape(-1, *(1,) * workspace.ndim)
            savings = self._saved_up_to(level)
            saved = savings[:, ends] - savings[:, starts]
            best = np.minimum(best, (np.maximum(workspace, peak) - in_flight * saved).min(axis=0))
        return best

    def _fewest(self, start: int, end: int, in_flight: int, workspace: int) -> int:
        """Fewest bytes of one span, without a table of all spans."""
        places = start + np.flatnonzero(self._savings[start:end])
        order = places[np.argsort(self._peaks[places], kind="stable")]
        needs = np.maximum(self._peaks[order], workspace) - in_flight * np.cumsum(self._savings[order])
        return int(needs.min(initial=workspace))

    @cached_property
    def _levels(self) -> Array:
        """The peaks p of recomputed layers."""
        return distinct(self._peaks[self._savings > 0])

    def _saved_up_to(self, level: slice) -> Array:
        """For each of these peaks p, prefix sums of the savings of all layers of peak at most p."""
        if len(self._levels) * len(self._sorts) <= LARGEST_TABLE:
            return self._saved[level]
        return sums_before(np.where(self._peaks <= self._levels[level, None], self._savings, 0))

    @cached_property
    def _saved(self) -> Array:
        return sums_before(np.where(self._peaks <= self._levels[:, None], self._savings, 0))

    def chosen_time(self, start: int, end: int, in_flight: int, spare: int) -> int:
        """Extra time of the layers that `choose` returns."""
        chosen = self.choose(start, end, in_flight, spare)
        return IMPOSSIBLE if chosen is None else int(self._cost[list(chosen)].sum())

    def choose(self, start: int, end: int, in_flight: int, spare: int) -> tuple[int, ...] | None:
        """The layers to recompute, in order; the first ones of layers with equal numbers."""
        query = start, end, in_flight, spare
        if query not in self._chosen:
            if len(self._chosen) >= MOST_CHOSEN:
                self._chosen.clear()
            self._chosen[query] = self._choice(*query)
        return self._chosen[query]

    def _choice(self, start: int, end: int, in_flight: int, spare: int) -> tuple[int, ...] | None:
        if self._crowd(start, end) or not self._curve(start, end).exact:
            layers_chosen = self._found(start, end, in_flight, spare)
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
        """The list of a span, built from that of the span one layer shorter unless it is cached."""
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
    """The cached `Recomputation` of these rows; problems that differ only in depth, replicas or memory share its lists.

    A search alternates between a dozen micro-batch sizes and a few kinds of device, and the lists take long to build.
    """
    rows = (row.astype(np.int64).tobytes() for row in (forward, savings, workspace, again))
    return _recomputation(*rows, recomputable.tobytes())


@lru_cache(maxsize=64)
def _recomputation(forward: bytes, savings: bytes, workspace: bytes, again: bytes, useful: bytes) -> Recomputation:
    rows = [np.frombuffer(row, np.int64) for row in (forward, savings, workspace, again)]
    return Recomputation(rows[0], rows[1], rows[2], rows[3], np.frombuffer(useful, np.bool_))
