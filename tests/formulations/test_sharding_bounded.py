"""Frontiers of two sums with bounds, against those without: nothing is lost, and choices cost their points."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.shardings import UNLIMITED, Block, blocks, every_choice, pareto, shardings
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import Edge, Sharding, bounded, frontier, weighted
from pipeplan_formulations.sharding.bounded import bounded_frontier
from pipeplan_formulations.sharding.elimination import Classes, Elimination
from pipeplan_formulations.sharding.frontier import eliminated
from pipeplan_formulations.sharding.hybrids import hybrid_costs
from pipeplan_formulations.sharding.weighted import Weighted, optima

SUMS = shardings(operators=5, width=2).map(lambda problem: replace(problem, maxima=0))
CHAINED = blocks().map(lambda block: replace(block, problem=replace(block.problem, maxima=0)))


def clock() -> Clock:
    """A clock that has just begun."""
    return Clock(Limits(60))


def _compare(problem: Sharding, exact: list[list[int]]) -> None:
    """The points are these, and every choice costs its point."""
    points, unwind = bounded_frontier(problem, clock())
    assert points.tolist() == exact
    for point in points:
        assert problem.evaluate(unwind(point)) == tuple(point.tolist())


@given(SUMS, st.sampled_from([0.0, 2.0, 150.0]), st.sampled_from([1, 2**21]))
@settings(max_examples=80, deadline=None)
def test_bounds_lose_no_point(problem: Sharding, large: float, at_once: int) -> None:
    """Tables of any size are bounded, and weighted sums formed in batches: the frontier is that of all choices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded, "LARGE", large)
        patch.setattr(weighted, "AT_ONCE", at_once)
        _compare(problem, pareto(every_choice(problem)[1]))


@given(CHAINED, st.integers(6, 11), st.sampled_from([0.0, 20.0]))
@settings(max_examples=12, deadline=None)
def test_bounds_lose_no_point_of_long_chains(block: Block, count: int, large: float) -> None:
    """Equal blocks one behind another have many points; the frontier is that of elimination without bounds."""
    problem = block.repeated(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded, "LARGE", large)
        _compare(problem, eliminated(problem, clock()).points.tolist())


def test_bounds_are_too_sharp_if_weighted_sums_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is outside of a table counts: with more than it costs points are lost, and with less none is."""
    random = np.random.default_rng(3)
    fast = random.integers(0, 90, (2, 3))
    own = tuple(np.stack([row, 90 - row], axis=1) for row in fast)
    problem = Block(Sharding(own, (Edge(0, 1, random.integers(0, 20, (3, 3, 2))),)), 0, 1).repeated(12)
    exact = eliminated(problem, clock()).points.tolist()
    assert len(exact) > 20
    monkeypatch.setattr(bounded, "LARGE", 2.0)
    outside = bounded.outsides

    def moved(by: int) -> list[list[int]]:
        def other(*given: object) -> dict[int, weighted.WeightedTable]:
            found = outside(*given)  # type: ignore[arg-type]
            for table in found.values():
                table.values[...] = np.maximum(table.values + by * np.abs(table.values) // 4, 0)
            return found

        monkeypatch.setattr(bounded, "outsides", other)
        points: list[list[int]] = bounded_frontier(problem, clock())[0].tolist()
        return points

    assert moved(0) == exact
    assert moved(-1) == exact
    assert moved(1) != exact


@given(SUMS, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=3))
@settings(max_examples=40, deadline=None)
def test_least_weighted_sums(problem: Sharding, slopes: list[tuple[int, int]]) -> None:
    """For each row of weights the sum is that of the best choice, and so are costs and choice."""
    _, costs = every_choice(problem)
    classes, weights = Classes(problem), np.array([(1, 0), (0, 1), *slopes], np.int64)
    elimination = Elimination(classes, Weighted(clock(), weights))
    elimination.run()
    found = elimination.result()
    if not len(costs):
        assert not len(found.at(()))
        return
    least = (costs @ weights.T).min(axis=0).tolist()
    assert found.values.tolist() == least
    assert (found.costs * weights).sum(axis=1).tolist() == least
    for choice, row, value in zip(optima(elimination, classes, weights), weights, least, strict=True):
        own = problem.evaluate(choice.tolist())
        assert own is not None and int(row @ own) == value


@given(SUMS, st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_hybrids_cost_what_choices_cost(problem: Sharding, seed: int) -> None:
    """Every cost of a hybrid is that of a choice of the problem; no choice that hybrids were made of is better."""
    choices, costs = every_choice(problem)
    if not len(choices):
        return
    random = np.random.default_rng(seed)
    own = choices[random.integers(len(choices), size=3)]
    found = hybrid_costs(problem, list(own))
    every = set(map(tuple, costs.tolist()))
    assert all(tuple(point) in every for point in found.tolist())
    for choice in own:
        cost = np.array(problem.evaluate(choice.tolist()))
        assert (found <= cost).all(axis=1).any()


def test_nothing_is_possible() -> None:
    """The frontier is empty, with bounds as without."""
    costs = np.zeros((2, 2), np.int64)
    problem = Sharding((costs, costs), (Edge(0, 1, np.full((2, 2, 2), UNLIMITED)),))
    points, _ = bounded_frontier(problem, clock())
    assert not len(points)


def test_many_operators_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`frontier` takes bounds where they pay, and stops in time."""
    random = np.random.default_rng(0)
    costs = tuple(random.integers(0, 100, (4, 2)) for _ in range(120))
    edges = tuple(Edge(v, v + 1, random.integers(0, 100, (4, 4, 2))) for v in range(119))
    problem = Sharding(costs, edges)
    calls: list[Sharding] = []

    def counted(given: Sharding, own: Clock) -> object:
        calls.append(given)
        return bounded_frontier(given, own)

    monkeypatch.setattr(import_module("pipeplan_formulations.sharding.frontier"), "bounded_frontier", counted)
    found = frontier(problem, clock())
    assert calls == [problem]
    assert found.points.tolist() == eliminated(problem, clock()).points.tolist()
    assert problem.evaluate(found.choice(7)) == tuple(found.points[7].tolist())
    with pytest.raises(OutOfTimeError):
        frontier(problem, Clock(Limits(0.0)))
