"""Graph partition problem: validation, stopping, bounds, and the linear model."""

from dataclasses import replace

import numpy as np
import pytest

from pipeplan_formulations import graph
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.graph import GraphMode, GraphPartition, Line, Star, prefix
from pipeplan_formulations.graph.downsets import all_downsets, orders, prefixes
from pipeplan_formulations.graph.prefix import prefix_model
from pipeplan_formulations.graph.warm import open_bracket, warm_start


def grid(rows: int, columns: int, stages: int, seed: int = 0) -> GraphPartition:
    """Parallel branches with edges between them: many downsets, and transfers that matter."""
    rng = np.random.default_rng(seed)
    n = rows * columns
    edges = [(i, i + 1) for i in range(n) if (i + 1) % columns]
    edges += [(i, i + columns) for i in range(n - columns) if rng.random() < 0.3]
    stars = tuple(Star(a, tuple(b for c, b in edges if c == a)) for a in range(n) if any(c == a for c, _ in edges))
    cost = rng.integers(0, 200, len(stars))
    time = rng.integers(1, 1000, (1, n))
    return GraphPartition(n, tuple(edges), stars, (stages,), (GraphMode("device", (1,), (Line(time, cost, cost),)),))


def diamond() -> GraphPartition:
    """Two branches between a source and a sink."""
    none = np.zeros(2, np.int64)
    line = Line(np.array([[1, 5, 5, 1]]), none, none)
    stars = (Star(0, (1, 2)), Star(1, (3,)))
    return GraphPartition(4, ((0, 1), (0, 2), (1, 3), (2, 3)), stars, (2,), (GraphMode("device", (1,), (line,)),))


def test_downsets_of_a_diamond() -> None:
    """Six sets are closed under predecessors; enumeration stops if there are too many."""
    assert all_downsets(diamond(), 10) == [0b0, 0b1, 0b11, 0b101, 0b111, 0b1111]
    assert all_downsets(diamond(), 5) is None


def test_orders_are_topological() -> None:
    """Every order of the warm start lists each group once, after all its predecessors."""
    problem = grid(3, 5, 2)
    for order in orders(problem, 10, seed=1):
        place = {g: i for i, g in enumerate(order)}
        assert sorted(order) == list(range(15))
        assert all(place[a] < place[b] for a, b in problem.edges)
    assert len(prefixes([[0, 1, 2, 3], [0, 2, 1, 3]])) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": ((0, 1), (1, 2), (2, 0))}, "cycle"),
        ({"edges": ((0, 9),)}, "groups are 0 to 3"),
        ({"pools": (2, 1)}, "pools"),
        ({"stars": (Star(3, (0,)), Star(1, (3,))), "route": "relay"}, "relayed"),
        ({"groups": 5}, "not sized for 5 groups"),
    ],
)
def test_invalid_problems_are_refused(change: dict, message: str) -> None:
    """An invalid problem raises an error that names the fault."""
    with pytest.raises(ValueError, match=message):
        _ = replace(diamond(), **change).descendants


@pytest.mark.parametrize("backend", graph.BACKENDS)
def test_no_time_still_gives_a_bound(backend: str) -> None:
    """Without time the report has a bound of at most the optimum, and the hint if one is given."""
    problem = grid(4, 6, 3)
    best = graph.solve(problem, Limits(60))
    assert best.status is Status.OPTIMAL
    report = graph.solve(problem, Limits(time=0.0), backend=backend)
    assert (report.status, report.stop) == (Status.UNKNOWN, Stop.TIME)
    assert 0 < report.bound <= best.objective
    hinted = graph.solve(problem, Limits(time=0.0), hint=best.solution, backend=backend)
    assert hinted.objective == best.objective


@pytest.mark.parametrize("backend", graph.BACKENDS)
def test_an_interrupt_hands_back_what_is_known(backend: str) -> None:
    """Ctrl-C during the report of a better plan ends the search with that plan."""

    def impatient(value: int | None, bound: int) -> None:
        if value is not None:
            raise KeyboardInterrupt

    report = graph.solve(grid(4, 6, 3), Limits(60), on_progress=impatient, backend=backend)
    assert (report.status, report.stop) == (Status.FEASIBLE, Stop.INTERRUPT)
    assert report.bound <= report.objective


@pytest.mark.parametrize("backend", graph.BACKENDS)
def test_a_gap_that_is_asked_for_stops_the_search(backend: str) -> None:
    """The solution is within the requested gap; the first solution is within a gap of one."""
    report = graph.solve(grid(4, 6, 3), Limits(60, gap=0.9), backend=backend)
    assert report.gap is not None
    assert report.gap <= 0.9
    assert report.stop in (Stop.GAP, Stop.OPTIMALITY)


def test_the_hint_is_a_complete_assignment() -> None:
    """Every row and clause of the model is satisfied at the point of a solution, T included."""
    problem = grid(3, 5, 3)
    bracket = open_bracket(problem, Limits(60))
    warm_start(problem, bracket)
    model = prefix_model(problem, Scale(), 0, bracket.high, bracket.ceiling)
    point = model.point(bracket.best, bracket.high)
    for row in model.rows.rows:
        value = row.expression.value(point)
        if all(point[v] for v in row.when):
            assert value == 0 if row.equal else value >= 0
    assert all(any(point[v] if v >= 0 else not point[~v] for v in clause) for clause in model.rows.clauses)
    assert model.read([float(x) for x in point]) == bracket.best


def test_cpsat_that_contradicts_the_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If CP-SAT reports infeasibility although a solution is known, the report has an error and only the free bound."""
    problem = grid(4, 6, 3)
    monkeypatch.setattr(prefix, "borders", lambda model: model.rows.clause([]))
    report = graph.solve(problem, Limits(60), backend="cpsat")
    assert (report.status, report.stop) == (Status.FEASIBLE, Stop.ERROR)
    assert report.bound == open_bracket(problem, Limits()).low
