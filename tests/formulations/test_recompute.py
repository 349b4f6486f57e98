"""The least recomputation of spans against every subset of their layers, with full lists and with thinned ones."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common import recomputation as recompute
from pipeplan_formulations.common import span_knapsack
from pipeplan_formulations.common.recomputation import Recomputation
from pipeplan_formulations.common.span_options import IMPOSSIBLE

numbers = st.integers(0, 30)


class Layers:
    """A few layers, and time and memory of recomputing a set of them."""

    def __init__(self, forward, saved, output, workspace, may) -> None:
        self.rows = list(zip(forward, saved, output, workspace, may, strict=True))

    def lists(self) -> Recomputation:
        """The lists under test."""
        forward, saved, output, workspace, may = (np.array(column) for column in zip(*self.rows, strict=True))
        return Recomputation(forward, saved - output, workspace, saved + workspace, may)

    def fits(self, span, chosen, flight, spare) -> bool:
        """True if the peak, less the savings of the micro-batches in flight, is at most ``spare``."""
        peak = max(self.rows[i][3] + (self.rows[i][1] if i in chosen else 0) for i in span)
        return peak - flight * sum(self.rows[i][1] - self.rows[i][2] for i in chosen) <= spare

    def cost(self, chosen) -> int:
        """Time of the forwards that run again."""
        return sum(self.rows[i][0] for i in chosen)

    def least(self, span, flight, spare):
        """(cost, layers) of the best set, by trying all; None if none fits."""
        may = [i for i in span if self.rows[i][4]]
        sets = (x for size in range(len(may) + 1) for x in combinations(may, size))
        return min(((self.cost(x), len(x)) for x in sets if self.fits(span, x, flight, spare)), default=None)


@st.composite
def layer_rows(draw, most=7) -> Layers:
    """Layers of few sorts or of many, not all of which may be recomputed, some of which would gain nothing."""
    n = draw(st.integers(1, most))
    sorts = draw(st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=n))
    chosen = [sorts[draw(st.integers(0, len(sorts) - 1))] for _ in range(n)]
    may = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return Layers(*zip(*chosen, strict=True), may)


def questions(data, n):
    """A span, some numbers in flight and some spare bytes."""
    start = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(start + 1, n))
    pairs = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(-150, 60)), min_size=1, max_size=4))
    return start, end, np.array([k for k, _ in pairs]), np.array([room for _, room in pairs])


@given(layer_rows(), st.data())
@settings(max_examples=300, deadline=None)
def test_full_lists_find_the_least(layers, data):
    """Bound and cost are the least over all subsets, and the chosen set fits, has that cost and is the smallest."""
    lists = layers.lists()
    start, end, flights, spares = questions(data, len(layers.rows))
    floor, cost = lists.least(start, end, flights, spares)
    for i, (flight, spare) in enumerate(zip(flights.tolist(), spares.tolist(), strict=True)):
        best = layers.least(range(start, end), flight, spare)
        chosen = lists.choose(start, end, flight, spare)
        assert floor[i] == cost[i] == (IMPOSSIBLE if best is None else best[0])
        assert (chosen is None) == (best is None)
        if chosen is not None:
            assert (layers.cost(chosen), len(chosen)) == best
            assert layers.fits(range(start, end), chosen, flight, spare)


@given(layer_rows(), st.data(), st.integers(2, 4))
@settings(max_examples=300, deadline=None)
def test_thinned_lists_bracket_the_least(layers, data, cap):
    """With short lists the least lies between bound and cost, and a span that can fit has a choice of least cost."""
    lists = layers.lists()
    start, end, flights, spares = questions(data, len(layers.rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "CAP", cap)
        floor, cost = lists.least(start, end, flights, spares)
        for i, (flight, spare) in enumerate(zip(flights.tolist(), spares.tolist(), strict=True)):
            best = layers.least(range(start, end), flight, spare)
            chosen = lists.choose(start, end, flight, spare)
            if best is None:
                assert floor[i] == cost[i] == IMPOSSIBLE
                assert chosen is None
                continue
            assert floor[i] <= best[0] == layers.cost(chosen) <= cost[i]
            assert lists.chosen_time(start, end, flight, spare) == best[0]
            assert layers.fits(range(start, end), chosen, flight, spare)


def test_a_range_of_peaks_counts_the_least_of_them(monkeypatch):
    """To recompute the third layer, which peaks at 9 bytes, is enough; the bound of peaks up to 31 allows for it."""
    monkeypatch.setattr(recompute, "CAP", 2)
    monkeypatch.setattr(recompute, "RANGES", 1)
    layers = Layers((27, 28, 1, 19), (30, 4, 5, 4), (10, 1, 1, 1), (1, 0, 4, 6), (True,) * 4)
    (floor,), (cost,) = layers.lists().least(0, 4, np.array([2]), np.array([2]))
    assert floor <= layers.least(range(4), 2, 2)[0] == 1 <= cost


@given(layer_rows(most=6), st.integers(1, 3), st.integers(-60, 40))
@settings(max_examples=100, deadline=None)
def test_many_spans_at_once_are_each_span_by_itself(layers, flight, spare):
    """Queries on all spans at once have the same results as one by one."""
    n = len(layers.rows)
    spans = np.array([(a, b) for a in range(n) for b in range(a + 1, n + 1)])
    flights, spares = np.full(len(spans), flight), spare - 3 * np.arange(len(spans))
    floor, cost = layers.lists().least_each(spans[:, 0], spans[:, 1], flights, spares)
    for i, (a, b) in enumerate(spans.tolist()):
        alone = layers.lists().least(a, b, flights[i : i + 1], spares[i : i + 1])
        assert (floor[i], cost[i]) == (alone[0][0], alone[1][0])


def test_equal_layers_share_their_lists():
    """A thousand equal layers need one list per length, with one entry more than layers."""
    n = 1000
    ones = np.ones(n, np.int64)
    lists = Recomputation(3 * ones, 8 * ones, 0 * ones, 10 * ones, ones.astype(bool))
    starts = np.arange(n - 40)
    floor, cost = lists.least_each(starts, starts + 40, 2 * np.ones_like(starts), np.full_like(starts, -150))
    assert (floor == cost).all()
    # 150 bytes less and the peak of 10: ten layers save 2 x 8 each.
    assert set(cost.tolist()) == {30}
    assert len(lists._curves) == 41
    assert len(lists._curve(5, 45).cost) == 41


@given(layer_rows(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_rough_answer_is_never_above_the_least(layers, data):
    """Without any list, the fractional knapsack bounds the cost, and is impossible only if no set fits."""
    lists = layers.lists()
    start, end, flights, spares = questions(data, len(layers.rows))
    rough = lists.quick_lower_bound(start, end, flights, spares)
    floor, _ = lists.least(start, end, flights, spares)
    assert (rough <= floor).all()


@given(layer_rows(), st.data())
@settings(max_examples=300, deadline=None)
def test_the_closer_answer_lies_between_the_quick_one_and_the_least(layers, data):
    """Of spans with a list of whole layers and without; where no peak binds, a list has the least itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(span_knapsack, "LISTED", data.draw(st.sampled_from([1, 3, 96])))
        lists = layers.lists()
        start, end, flights, spares = questions(data, len(layers.rows))
        starts, ends = np.full_like(flights, start), np.full_like(flights, end)
        closer = lists.closer_lower_bound(starts, ends, flights, spares)
        least = [layers.least(range(start, end), k, spare) for k, spare in zip(flights, spares, strict=True)]
        assert (closer >= lists.quick_lower_bound(start, end, flights, spares)).all()
        for found, best in zip(closer.tolist(), least, strict=True):
            assert best is None or found <= best[0]


@pytest.mark.parametrize("listed", [1, 96])
def test_the_closer_answer_counts_the_least_peak(monkeypatch, listed):
    """The first layer saves 20 bytes of two in flight, and peaks at 10: it is enough for one."""
    monkeypatch.setattr(span_knapsack, "LISTED", listed)
    layers = Layers((5, 7), (10, 30), (0, 0), (0, 0), (True, True))
    start, end, flight, spare = np.array([[0], [2], [2], [-1]])
    assert layers.least(range(2), 2, -1)[0] == 5
    assert layers.lists().quick_lower_bound(start, end, flight, spare) == 0
    assert layers.lists().closer_lower_bound(start, end, flight, spare) == (5 if listed > 1 else 1)


@given(layer_rows(), st.data())
@settings(max_examples=300, deadline=None)
def test_long_spans_have_a_choice_wherever_anything_fits(layers, data):
    """Without lists a choice fits if any does, and has the least cost, which is returned."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recompute, "CROWD", 0)
        lists = layers.lists()
        start, end, flights, spares = questions(data, len(layers.rows))
        floor, cost = lists.least(start, end, flights, spares)
        for i, (flight, spare) in enumerate(zip(flights.tolist(), spares.tolist(), strict=True)):
            best = layers.least(range(start, end), flight, spare)
            chosen = lists.choose(start, end, flight, spare)
            assert (chosen is None) == (best is None)
            if chosen is None or best is None:
                assert cost[i] == IMPOSSIBLE
            else:
                assert floor[i] <= best[0] == cost[i] == layers.cost(chosen)
                assert layers.fits(range(start, end), chosen, flight, spare)


def test_a_choice_without_lists_is_close_to_theirs_in_long_spans(monkeypatch):
    """On a hundred unlike layers it costs at most one per cent of the span's forward more than what a list finds."""
    rng = np.random.default_rng(0)
    forward, saved = rng.integers(100, 1000, 100), rng.integers(1000, 9000, 100)
    tables = forward, saved - saved // 9, np.full(100, 50), saved + 50, np.ones(100, np.bool_)
    spare = -np.linspace(1000, int((saved - saved // 9).sum()) - 10_000, 40).astype(np.int64)
    floor, greedy = Recomputation(*tables).least(0, 100, np.ones(40, np.int64), spare)
    monkeypatch.setattr(recompute, "CROWD", 100)
    _, listed = Recomputation(*tables).least(0, 100, np.ones(40, np.int64), spare)
    assert (np.abs(greedy - listed) <= 0.01 * forward.sum()).all()
    assert (floor <= np.minimum(greedy, listed)).all()
