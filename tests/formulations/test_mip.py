"""The linear model and its adapters: every solver against every point of small random models."""

from itertools import product

import numpy as np
import pytest

from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.mip.model import Answer, Expression, LinearModel, MipSolver, Row, sum_of
from pipeplan_formulations.common.report import Limits, Status, Stop

EACH = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
LIMITS = Limits(time=20, workers=1)


def random_model(seed: int, times: int = 1) -> LinearModel:
    """Three booleans, an integer and T; rows, some under conditions, and clauses. Times are multiples of ``times``."""
    random = np.random.default_rng(seed)
    model = LinearModel()
    booleans = [model.boolean() for _ in range(3)]
    number = model.integer(0, int(random.integers(1, 4)))
    model.minimize(model.time(0, 60 * times))
    for _ in range(4):
        weights = {v: int(random.integers(-3, 8)) * times for v in (*booleans, number)}
        when = [v if random.random() < 0.5 else ~v for v in booleans if random.random() < 0.3]
        model.at_least(Expression({model.objective: 1}) - Expression(weights, int(random.integers(9)) * times), 0, when)
    for _ in range(3):
        literals = [v if random.random() < 0.5 else ~v for v in booleans if random.random() < 0.7]
        model.clause(literals or booleans)
    model.at_least({v: int(random.integers(-2, 4)) for v in (*booleans, number)}, int(random.integers(4)))
    return model


def keeps(model: LinearModel, point: list[int]) -> bool:
    """True if a point satisfies every row and clause."""

    def true(literal: int) -> bool:
        return bool(point[literal] if literal >= 0 else not point[~literal])

    def held(row: Row) -> bool:
        value = row.expression.value(point)
        return not all(map(true, row.when)) or (value == 0 if row.equal else value >= 0)

    return all(map(held, model.rows)) and all(any(map(true, clause)) for clause in model.clauses)


def optimum(model: LinearModel, times: int = 1) -> int | None:
    """The least objective of all points."""
    *others, time = zip(model.lows, model.highs, strict=True)
    ranges = [range(low, high + 1) for low, high in others]
    points = product(*ranges, range(time[0], time[1] + 1, times))
    return min((point[-1] for point in points if keeps(model, list(point))), default=None)


@EACH
@pytest.mark.parametrize("times", [1, 10**9])
def test_solvers_equal_brute_force(solver: MipSolver, times: int) -> None:
    """Optimum, bound and point are right for all sizes of times, infeasible models included."""
    infeasible = 0
    for seed in range(25):
        model = random_model(seed, times)
        best, answer = optimum(model, times), solver.solve(model, LIMITS)
        if best is None:
            assert answer.status is Status.INFEASIBLE, seed
            infeasible += 1
            continue
        assert (answer.status, answer.stop) == (Status.OPTIMAL, Stop.GAP), seed
        assert best * (1 - 1e-6) <= answer.bound <= best, seed
        assert answer.point is not None
        point = list(map(round, answer.point))
        assert keeps(model, [*point[:-1], best]), seed
        assert abs(point[-1] - best) <= 1e-6 * best, seed
    assert 0 < infeasible < 25


def test_cpsat_reports_solutions_and_bounds() -> None:
    """A complete hint is the first solution, and callbacks end at the optimum."""
    model = LinearModel()
    switches = [model.boolean() for _ in range(6)]
    model.minimize(model.time(0, 1000))
    model.at_least(dict.fromkeys(switches, 1), 3)
    model.at_least(Expression({model.objective: 1}) - sum_of(Expression({v: 7 + v}) for v in switches))
    points: list[list[float]] = []
    bounds: list[int] = []
    answer: Answer = CPSAT.solve(model, LIMITS, [1] * 6 + [57], points.append, bounds.append)
    assert (answer.status, answer.bound) == (Status.OPTIMAL, 24)
    assert points[-1][-1] == 24
    assert all(bound <= 24 for bound in bounds)


def test_a_solution_within_the_gap_is_no_bound() -> None:
    """Of hints that are within the gap cpsat may improve none: its bound stays below the optimum all the same."""
    kept = 0
    for seed in range(4):
        random = np.random.default_rng(seed)
        costs, model = random.integers(50, 60, 40).tolist(), LinearModel()
        switches = [model.boolean() for _ in costs]
        model.minimize(model.time(0, 4000))
        model.at_least(dict.fromkeys(switches, 1), 20)
        model.at_least(Expression({model.objective: 1}) - Expression(dict(zip(switches, costs, strict=True))))
        best, hint = sum(sorted(costs)[:20]), [0] * 20 + [1] * 20
        answer = CPSAT.solve(model, Limits(time=20, gap=0.5, workers=1), [*hint, sum(costs[20:])])
        assert answer.point is not None and answer.bound <= best <= answer.point[-1]
        kept += answer.point[-1] > best
    assert kept >= 2


def test_rows_that_ends_ensure_are_left_out() -> None:
    """Rows and clauses that the variables' ends imply are omitted; those that only other rows imply are kept."""
    model = LinearModel()
    model.minimize(model.time(5, 9))
    switch, begin = model.boolean(), model.time(3, 4)
    model.at_least({model.objective: 1}, 5)
    model.clause((switch, ~model.boolean(0, 0)))
    assert (model.rows, model.clauses) == ([], [])
    model.at_least({begin: 1}, 2)
    assert len(model.rows) == 1
    assert (model.least(Expression({begin: -2}, 1)), model.most(Expression({begin: -2}, 1))) == (-7, -5)
