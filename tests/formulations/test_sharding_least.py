"""Least weighted sums of sharding problems by every back end, against all choices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.quick import examples
from helpers.shardings import UNLIMITED, every_choice, questions, shardings
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Report, Status, Stop
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.sharding import BACKENDS, Cap, Choice, Edge, Sharding, WeightedSharding, solve
from pipeplan_formulations.sharding.bounds import lower_bound
from pipeplan_formulations.sharding.linear import linear_model

LIMITS = Limits(time=30, workers=1)


def least(problem: Sharding, weights: tuple[int, ...], caps: tuple[Cap, ...]) -> int | None:
    """Least weighted sum of all choices within the caps."""
    _, costs = every_choice(problem)
    for cap in caps:
        costs = costs[costs @ np.array(cap.weights, np.int64) <= cap.limit]
    return int((costs[:, : problem.sums] @ np.array(weights, np.int64)).min()) if len(costs) else None


def check(report: Report[Choice], question: WeightedSharding, best: int | None, gap: float = 0.0) -> None:
    """Check that the report is the optimum, and its value that of its solution."""
    if best is None:
        assert (report.status, report.solution) == (Status.INFEASIBLE, None)
        return
    assert report.solution is not None
    assert report.objective == best == question.evaluate(report.solution)
    assert best * (1 - gap) - gap <= report.bound <= best


@pytest.mark.parametrize("backend", BACKENDS)
@given(st.data())
@examples(50, 500)
def test_every_back_end_finds_the_optimum(backend: str, data: st.DataObject) -> None:
    """With and without caps on sums and maxima the optimum is found and proved, or infeasibility."""
    problem = data.draw(shardings())
    weights, caps = data.draw(questions(problem))
    report = solve(problem, weights, caps, LIMITS, backend=backend)
    gap = 1e-6 if backend == "cbc" else 0.0
    check(report, WeightedSharding(problem, weights, caps), least(problem, weights, caps), gap)


@given(shardings())
@settings(max_examples=60, deadline=None)
def test_the_bound_without_a_solver_holds(problem: Sharding) -> None:
    """No choice has a sum below it, and it is None only where no choice is possible."""
    weights = (1,) * problem.sums
    low, best = lower_bound(WeightedSharding(problem, weights).scalar()), least(problem, weights, ())
    assert (low is not None or best is None) and (low is None or best is None or low <= best)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_linear_model_admits_every_optimum(data: st.DataObject) -> None:
    """An optimum satisfies all rows of the model, and the model reads it back."""
    problem = data.draw(shardings())
    weights, caps = data.draw(questions(problem))
    question = WeightedSharding(problem, weights, caps)
    report = solve(problem, weights, caps, LIMITS)
    if report.solution is None or report.objective is None:
        return
    model = linear_model(question, Scale(), 0, question.largest)
    point = model.point(report.solution, report.objective)
    assert all(low <= value <= high for low, value, high in zip(model.lows, point, model.highs, strict=True))
    for row in model.rows:
        value = row.expression.value(point)
        assert value == 0 if row.equal else value >= 0
    assert model.read([float(x) for x in point]) == report.solution


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_time_is_an_answer(backend: str) -> None:
    """Without time there is a report with a valid bound, and the hint as its solution."""
    rng = np.random.default_rng(1)
    edges = tuple(Edge(v, v + 1, rng.integers(1, 50, (8, 8, 2))) for v in range(29))
    problem = Sharding(tuple(rng.integers(1, 50, (30, 8, 2))), edges)
    hint = (0,) * 30
    best = solve(problem, (1, 0), (), LIMITS).objective
    report = solve(problem, (1, 0), (), Limits(time=0), hint, backend=backend)
    assert report.bound <= best <= report.objective <= problem.evaluate(hint)[0]
    assert report.stop in (Stop.TIME, Stop.OPTIMALITY)


def test_invalid_questions_are_refused() -> None:
    """Wrong numbers of weights, negative ones, unknown back ends, sums beyond 64 bits; a wrong hint is ignored."""
    problem = Sharding((np.array([(1, 2), (2, UNLIMITED)]),), maxima=1)
    for weights, caps, words in (
        ((1, 1), (), "objective has weights"),
        ((-1,), (), "none of them negative"),
        ((1,), (Cap((1,), 3),), "cap has weights"),
    ):
        with pytest.raises(ValueError, match=words):
            solve(problem, weights, caps, LIMITS)
    with pytest.raises(ValueError, match="'simplex' is not known"):
        solve(problem, (1,), (), LIMITS, backend="simplex")
    with pytest.raises(BeyondIntegersError):
        solve(problem, (2**61,), (), LIMITS)
    for hint in ((0, 0), (1,), (7,)):
        assert solve(problem, (1,), (), LIMITS, hint).solution == (0,)
