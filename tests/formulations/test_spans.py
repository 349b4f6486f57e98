"""Queries on spans of an array: the largest entry, the fractional knapsack, and whole choices."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common import span_knapsack
from pipeplan_formulations.common.span_knapsack import SpanKnapsack, SpanLargest, greedy, least_choice


def every_span(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of all spans of n entries."""
    spans = np.array([(a, b) for a in range(n) for b in range(a + 1, n + 1)])
    return spans[:, 0], spans[:, 1]


def by_hand(cost: list[int], savings: list[int], need: int) -> float:
    """A plain fractional knapsack: the cheapest per saving first, a part of the last one."""
    total = 0.0
    for price, saved in sorted(zip(cost, savings, strict=True), key=lambda thing: thing[0] / max(thing[1], 1e-9)):
        part = min(need, saved)
        total += price * part / saved if saved else 0.0
        need -= part
    return total if need <= 0 else np.inf


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_the_largest_of_every_span(values: list[int]) -> None:
    """It equals the maximum over the entries."""
    largest, (starts, ends) = SpanLargest(np.array(values)), every_span(len(values))
    assert largest.of(starts, ends).tolist() == [max(values[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert largest.of_all == max(values)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_the_knapsack_of_every_span(things: list[tuple[int, int]], need: int) -> None:
    """With a rank per item it is the textbook's; with fewer ranks it is never more, and impossible equally often."""
    cost, savings = (np.array(column) for column in zip(*things, strict=True))
    starts, ends = every_span(len(things))
    needs = np.full(len(starts), need)
    exact = SpanKnapsack(cost, savings).least(starts, ends, needs)
    expected = [by_hand(cost[a:b].tolist(), savings[a:b].tolist(), need) for a, b in zip(starts, ends, strict=True)]
    assert exact.tolist() == pytest.approx(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_knapsack, "RANKS", 3)
        rough = SpanKnapsack(cost, savings).least(starts, ends, needs)
    assert (rough <= exact + 1e-9).all()
    assert (np.isinf(rough) == np.isinf(exact)).all()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=6),
    st.integers(0, 30),
    st.integers(1, 3),
    st.integers(-20, 20),
)
@settings(max_examples=200, deadline=None)
def test_whole_choices_fit_and_the_proved_one_costs_least(
    things: list[tuple[int, int, int]], workspace: int, in_flight: int, spare: int
) -> None:
    """Against all sets: layers that keep their activations have their workspace, and those that recompute a peak."""
    cost, savings, peak = (np.array(column) for column in zip(*things, strict=True))
    question = cost, savings, peak, workspace, in_flight, spare

    def fits(chosen: tuple[int, ...]) -> bool:
        saved = sum(int(savings[i]) for i in chosen)
        return max([workspace, *(int(peak[i]) for i in chosen)]) - in_flight * saved <= spare

    every = [some for size in range(len(cost) + 1) for some in combinations(range(len(cost)), size) if fits(some)]
    best = min((int(sum(cost[i] for i in some)) for some in every), default=None)
    first, (least, proved) = greedy(*question), least_choice(*question)
    assert (first is None) == (least is None) == (best is None)
    if best is not None:
        assert all(fits(tuple(chosen)) for chosen in (first, least))
        assert best <= cost[least].sum() <= cost[first].sum()
        assert cost[least].sum() == best or not proved
