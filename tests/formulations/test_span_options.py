"""Options of a stage: a provider with only points against recomputation, which overrides the queries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common import recomputation, span_knapsack
from pipeplan_formulations.common.recomputation import Recomputation
from pipeplan_formulations.common.span_knapsack import SpanKnapsack
from pipeplan_formulations.common.span_options import IMPOSSIBLE, OptionPoints, SpanOptions

numbers = st.integers(0, 30)
rows = st.lists(st.tuples(numbers, numbers, numbers, st.booleans()), min_size=1, max_size=6)


class PointsOnly(SpanOptions):
    """A provider with the points of another, and no faster query."""

    def __init__(self, options: SpanOptions) -> None:
        self._options, self.workspace = options, options.workspace

    def points(self, start: int, end: int) -> OptionPoints:
        """Points of the other provider."""
        return self._options.points(start, end)

    def choose(self, start: int, end: int, in_flight: int, spare: int) -> tuple[int, ...] | None:
        """Not used here."""
        raise NotImplementedError


@given(rows, st.integers(1, 4), st.integers(-80, 40))
@settings(max_examples=200, deadline=None)
def test_points_are_enough_for_every_query(layers, flight, spare):
    """Least extra time and fewest bytes from the points of a span equal those of recomputation."""
    forward, saved, workspace, may = (np.array(column) for column in zip(*layers, strict=True))
    own = Recomputation(forward, saved, workspace, saved + workspace, may)
    stated = PointsOnly(own)
    starts, ends = np.array([(a, b) for b in range(1, len(layers) + 1) for a in range(b)]).T
    flights, spares = np.full(len(starts), flight), np.full(len(starts), spare)
    for one, other in zip(
        stated.least_each(starts, ends, flights, spares),
        own.least_each(starts, ends, flights, spares),
        strict=True,
    ):
        assert one.tolist() == other.tolist()
    fewest = stated.fewest_bytes(starts, ends, flights)
    assert fewest.tolist() == own.fewest_bytes(starts, ends, flights).tolist()
    quick = stated.quick_lower_bound(starts, ends, flights, spares)
    assert ((quick < IMPOSSIBLE) == (fewest <= spare)).all()
    assert not stated.crowded(starts, ends).any()


def test_the_first_point_that_fits_is_the_cheapest():
    """Three options that take 10, 6 and 2 bytes with one micro-batch in flight, 20, 11 and 2 with two."""
    points = OptionPoints(np.array([[0, 3, 7]]), np.zeros(3, int), np.array([10, 5, 0]), np.array([0, 1, 2]))
    time, chosen = points.cheapest(np.array([1, 1, 2, 2, 1]), np.array([10, 9, 11, 10, 1]))
    assert time.tolist() == [0, 3, 3, 7, IMPOSSIBLE]
    assert chosen.tolist() == [0, 1, 1, 2, 0]


@pytest.mark.parametrize(("few", "kept"), [(100, 10**6), (0, 0)])
def test_fewest_bytes_without_a_table_are_the_same(monkeypatch: pytest.MonkeyPatch, few: int, kept: int) -> None:
    """Spans of long chains, one by one or with a table that is not kept, need as many bytes as by the table."""
    rng = np.random.default_rng(few)
    forward, savings, workspace, again = rng.integers(0, 30, (4, 40))
    starts = rng.integers(0, 40, 30)
    ends = starts + 1 + rng.integers(0, 40 - starts)
    flights = rng.integers(1, 5, 30)

    def fewest() -> list[int]:
        options = Recomputation(forward, savings, workspace, again, np.ones(40, np.bool_))
        return options.fewest_bytes(starts, ends, flights).tolist()

    table = fewest()
    monkeypatch.setattr(recomputation, "SMALL_TABLE", -1)
    monkeypatch.setattr(recomputation, "FEW_SPANS", few)
    monkeypatch.setattr(recomputation, "LARGEST_TABLE", kept)
    assert fewest() == table


def test_fewer_ranks_of_long_chains_still_bound_the_knapsack(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer ranks the least cost is no higher, that of whole ranks no lower, and the sums are as small as said."""
    rng = np.random.default_rng(1)
    cost, savings = rng.integers(1, 100, (2, 60))
    starts, ends = np.zeros(3, np.int64), np.array([20, 40, 60])
    need = np.array([savings[:end].sum() // 2 for end in ends])
    fine = SpanKnapsack(cost, savings)
    monkeypatch.setattr(span_knapsack, "ENTRIES", 61 * 8)
    coarse = SpanKnapsack(cost, savings)
    assert all(sums.size <= 61 * 9 for sums in coarse._sums)
    assert (coarse.least(starts, ends, need) <= fine.least(starts, ends, need)).all()
    assert (coarse.whole(starts, ends, need) >= fine.least(starts, ends, need)).all()
