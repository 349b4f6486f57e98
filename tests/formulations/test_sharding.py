"""Frontiers of sharding problems against all choices; classes of signatures; equal blocks."""

from importlib import import_module
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.shardings import UNLIMITED, Block, every_choice, pareto, shardings
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import BeyondIntegersError, Limits
from pipeplan_formulations.sharding import Edge, Sharding, elimination, frontier, least, least_choice, least_sums, sets
from pipeplan_formulations.sharding.classes import classes
from pipeplan_formulations.sharding.frontier import eliminated


def clock(seconds: float = 60.0) -> Clock:
    """A clock that has just begun."""
    return Clock(Limits(seconds))


def array(*rows: object) -> np.ndarray:
    """Costs."""
    return np.array(rows, np.int64)


def test_two_operators_worked_by_hand() -> None:
    """Fast signatures that differ pay a redistribution; the workspace is the largest one of all, not their sum."""
    fast, lean = (2, 9, 4), (5, 3, 1)
    change = array([(0, 0, 0), (1, 0, 7)], [(1, 0, 7), (0, 0, 0)])
    problem = Sharding((array(fast, lean), array(fast, lean)), (Edge(0, 1, change),), maxima=1)
    assert problem.evaluate((0, 0)) == (4, 18, 4)
    assert problem.evaluate((0, 1)) == (8, 12, 7)
    found = frontier(problem, clock())
    assert found.points.tolist() == [[4, 18, 4], [8, 12, 7], [10, 6, 1]]
    assert found.choice(2) == (1, 1)


@given(shardings())
@settings(max_examples=150, deadline=None)
def test_the_frontier_equals_brute_force(problem: Sharding) -> None:
    """The points are those of all choices, and every unwound choice costs its point."""
    _, costs = every_choice(problem)
    found = frontier(problem, clock())
    assert found.points.tolist() == pareto(costs)
    for p, point in enumerate(found.points.tolist()):
        assert problem.evaluate(found.choice(p)) == tuple(point)


@pytest.mark.parametrize("symmetric", [True, False])
def test_equal_tables_along_unlike_axes_are_joined_apart(symmetric: bool) -> None:
    """Operators with equal costs, and edges with one table, which leads from a lower operator or to it."""
    for seed in range(80):
        rng = np.random.default_rng(seed)
        count, signatures = int(rng.integers(4, 7)), int(rng.integers(2, 4))
        own, table = rng.integers(0, 9, (signatures, 2)), rng.integers(0, 9, (signatures, signatures, 2))
        if symmetric:
            table = table + table.transpose(1, 0, 2)
        pairs = [(u, v) for u in range(count) for v in range(u + 1, count) if rng.random() < 0.6]
        turned = rng.random(len(pairs)) < 0.5
        edges = [Edge(v, u, table) if turn else Edge(u, v, table) for (u, v), turn in zip(pairs, turned, strict=True)]
        problem = Sharding((own,) * count, tuple(edges))
        _, costs = every_choice(problem)
        assert frontier(problem, clock()).points.tolist() == pareto(costs)


@pytest.mark.slow
@given(shardings(operators=6))
@settings(max_examples=500, deadline=None)
def test_the_frontier_equals_brute_force_at_length(problem: Sharding) -> None:
    """The same on more and larger problems."""
    test_the_frontier_equals_brute_force.hypothesis.inner_test(problem)


@given(shardings(operators=4, signatures=7), st.sampled_from([1, 5, 2**20]))
@settings(max_examples=40, deadline=None)
def test_large_sets_are_complete(problem: Sharding, pairs: int) -> None:
    """Guards and batches of any size lose no point where sets have many runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "PAIRS", pairs)
        patch.setattr(sets, "RUN", 3)
        test_the_frontier_equals_brute_force.hypothesis.inner_test(problem)


@given(shardings())
@settings(max_examples=60, deadline=None)
def test_ends_of_the_frontier_are_the_least_costs(problem: Sharding) -> None:
    """The least of each sum on the frontier is the optimum of a problem with this coordinate alone."""
    found = frontier(problem, clock()).points
    for d in range(problem.sums):
        alone = frontier(problem.project(np.eye(problem.sums, dtype=np.int64)[[d]], maxima=False), clock())
        assert alone.points.tolist() == ([[int(found[:, d].min())]] if len(found) else [])


@given(shardings(operators=5).filter(lambda each: each.sums > 0), st.sampled_from([1, 2**14]))
@settings(max_examples=80, deadline=None)
def test_least_sums_are_those_of_all_choices(problem: Sharding, cells: int) -> None:
    """Each by itself; also where tables are too large to be joined for all."""
    sums = problem.project(np.eye(problem.sums, dtype=np.int64), maxima=False)
    _, costs = every_choice(sums)
    with mock.patch.object(least, "SMALL", cells):
        assert least_sums(sums, clock()) == tuple(map(min, zip(*costs, strict=True)))


@given(shardings(operators=5).filter(lambda each: each.sums > 0), st.sampled_from([1, 2**14]))
@settings(max_examples=80, deadline=None)
def test_a_least_choice_has_the_least_of_one_sum(problem: Sharding, cells: int) -> None:
    """Also where tables are too large to be joined; none if no choice is possible."""
    one = problem.project(np.eye(1, problem.sums, dtype=np.int64), maxima=False)
    _, costs = every_choice(one)
    with mock.patch.object(least, "SMALL", cells):
        found = least_choice(one, clock())
    assert (found and one.evaluate(found)) == (min(costs) if len(costs) else None)


@given(shardings(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_projected_frontier_is_the_projection_of_the_frontier(problem: Sharding, seed: int, maxima: bool) -> None:
    """Combining coordinates before or after dominance gives the same points."""
    rows = np.random.default_rng(seed).integers(0, 3, (2, problem.sums))
    points = frontier(problem, clock()).points
    kept = points[:, problem.sums :] if maxima else points[:, :0]
    projected = np.concatenate([points[:, : problem.sums] @ rows.T, kept], axis=1)
    assert frontier(problem.project(rows, maxima), clock()).points.tolist() == pareto(projected)


def test_equal_blocks_are_joined_once() -> None:
    """Of equal blocks one is eliminated: another one of two inner operators takes at most one join more."""
    rng = np.random.default_rng(0)
    edges = tuple(Edge(u, v, rng.integers(0, 9, (3, 3, 2))) for u, v in ((0, 1), (0, 1), (1, 2), (0, 2)))
    block = Block(Sharding(tuple(rng.integers(0, 9, (3, 3, 2))), edges), 0, 2)
    joins: list[int] = []
    plain = sets.Sets.combine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets.Sets, "combine", lambda *given: joins.append(0) or plain(*given))
        for count in (16, 32):
            joins.append(count)
            eliminated(block.repeated(count), clock())
    some, more = joins.index(32) - 1, len(joins) - joins.index(32) - 1
    assert some <= 2 * 16
    assert more - some <= 16


def test_signatures_that_are_no_better_are_dropped() -> None:
    """Signature 2 is dominated, 0 and 1 differ only in their own costs, 3 is impossible, 4 equals 0."""
    costs = array((5, 3), (4, 6), (6, 3), (UNLIMITED, 0), (5, 3))
    side = array([(0, 4)], [(0, 4)], [(2, 4)], [(0, 0)], [(0, 4)])
    assert classes(costs, [side]).tolist() == [0, 0, -1, -1, -1]


def test_entangled_graphs_and_short_times_are_refused() -> None:
    """A table beyond the limit, and the end of the time, raise."""
    rng = np.random.default_rng(0)
    edges = tuple(Edge(u, v, rng.integers(0, 50, (3, 3, 2))) for u in range(5) for v in range(u))
    problem = Sharding(tuple(rng.integers(0, 50, (5, 3, 2))), edges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "WIDEST", 3**4)
        with pytest.raises(elimination.TooLargeError):
            frontier(problem, clock())
    with pytest.raises(OutOfTimeError):
        frontier(problem, clock(0))


def test_invalid_instances_are_refused() -> None:
    """Each error names what is wrong."""
    one, edge = array((1, 2)), Edge(0, 1, array([(0, 0)]))
    for make, words in (
        (lambda: Sharding(()), "at least one operator"),
        (lambda: Sharding((one,), maxima=3), "3 of 2 coordinates"),
        (lambda: Sharding((one, one[:, :1])), "operator 1 has costs of shape"),
        (lambda: Sharding((one.astype(np.int32),)), "int32"),
        (lambda: Sharding((one, one), (edge._replace(target=2),)), "edge 0 joins 0 and 2"),
        (lambda: Sharding((one, one), (Edge(0, 1, one),)), "edge 0 has costs of shape"),
        (lambda: Sharding((-one,)), "operator 0 has a negative cost: -2"),
        (lambda: Sharding((one,)).project(array((1,))), "matrix has shape"),
        (lambda: Block(Sharding((one, one)), 0, 0), "entry 0 and exit 0"),
        (lambda: Block(Sharding((one, array((1, 2), (2, 1)))), 0, 1), "1 signatures and the exit 2"),
        (lambda: Block(Sharding((one, one)), 0, 1).repeated(0), "at least one block"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_sums_beyond_64_bits_are_refused() -> None:
    """Two operators of 2^60 are too large for sums, not for maxima; so are weights that make them so."""
    large = array((2**60,))
    with pytest.raises(BeyondIntegersError):
        Sharding((large, large))
    assert frontier(Sharding((large, large), maxima=1), clock()).points.tolist() == [[2**60]]
    with pytest.raises(BeyondIntegersError):
        Sharding((large,)).project(array((2,)))


def test_a_few_signatures_have_the_classes_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plain Python finds for few of them is what arrays find for many, impossible ones and ties included."""
    draw, module = np.random.default_rng(0), import_module("pipeplan_formulations.sharding.classes")

    def table(*shape: int) -> np.ndarray:
        costs = draw.integers(0, 3, shape)
        return np.where(draw.random(shape) < 0.05, UNLIMITED, costs)

    for _ in range(300):
        count, width = draw.integers(1, 9), draw.integers(1, 4)
        costs, sides = table(count, width), [table(count, draw.integers(1, 4), width) for _ in range(draw.integers(4))]
        few = classes(costs, sides).tolist()
        monkeypatch.setattr(module, "FEW", 0)
        assert classes(costs, sides).tolist() == few
        monkeypatch.undo()
