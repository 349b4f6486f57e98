"""CP-SAT, CBC, the exact search and all permutations agree; bounds hold; answers are schedules."""

import math
from dataclasses import replace

import pytest

from pipeline_schedules import every_order, random_schedule
from pipeplan_formulations.report import Limits, Status
from pipeplan_formulations.schedule import Orders, cbc, cpsat, evaluate, exact, lower_bound
from pipeplan_formulations.schedule.incumbent import Incumbent
from pipeplan_formulations.schedule.serial import serial
from pipeplan_formulations.schedule.suffix import suffix_bound
from pipeplan_formulations.schedule.windows import windows

LIMITS = Limits(time=60, workers=1)


@pytest.fixture
def unaided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers begin with the worst orders and know no bound, so that what they prove is their own."""

    def worst(state: Incumbent, hint: Orders | None, seconds: float) -> None:
        state.offer(serial(state.problem))

    for module in (cpsat, cbc):
        monkeypatch.setattr(module, "start", worst)
        monkeypatch.setattr(module, "lower_bound", lambda problem, known=None: 0)


def agree(seed: int) -> None:
    """All three say the same of one instance, and their orders are worth what they say."""
    problem = random_schedule(seed)
    oracle = exact.solve(problem, LIMITS)
    assert oracle.status is (Status.OPTIMAL if problem.possible else Status.INFEASIBLE), seed
    for backend in (cpsat, cbc):
        report = backend.solve(problem, LIMITS)
        assert (report.status, report.objective) == (oracle.status, oracle.objective), (seed, backend.NAME)
        if report.solution is not None:
            assert evaluate(problem, report.solution) == oracle.objective, (seed, backend.NAME)


def bounded(seed: int) -> None:
    """No bound exceeds the optimum."""
    problem = random_schedule(seed)
    oracle = exact.solve(problem, LIMITS)
    if oracle.objective is not None:
        assert lower_bound(problem) <= oracle.objective, seed


@pytest.mark.usefixtures("unaided")
def test_three_solvers_agree() -> None:
    """On 60 random instances all backends find the same optimum, or that there is none."""
    for seed in range(60):
        agree(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("unaided")
def test_three_solvers_agree_on_many() -> None:
    """On 500 random instances all backends find the same optimum, or that there is none."""
    for seed in range(1000, 1500):
        agree(seed)


def test_bounds_hold() -> None:
    """On 300 random instances the bounds are no larger than the optimum."""
    for seed in range(300):
        bounded(seed)


@pytest.mark.slow
def test_bounds_hold_on_many() -> None:
    """On 2,000 random instances the bounds are no larger than the optimum."""
    for seed in range(10_000, 12_000):
        bounded(seed)


def test_the_exact_search_is_as_good_as_all_permutations() -> None:
    """Where all permutations of all lists can be tried, the exact search finds their best, or that there is none."""
    tried = 0
    for seed in range(400):
        problem = random_schedule(seed, most_micro_batches=2)
        sizes = [sum(1 for _ in problem.operations(d)) for d in range(problem.devices)]
        if math.prod(map(math.factorial, sizes)) <= 6000:
            tried += 1
            assert exact.solve(problem, LIMITS).objective == every_order(problem), seed
    assert tried >= 40


def test_the_last_micro_batches_bound_all() -> None:
    """The head of a late first forward plus the optimum of what follows it is no larger than the optimum of all."""
    tried = 0
    for seed in range(300):
        problem = random_schedule(seed)
        whole = exact.solve(problem, LIMITS)
        if whole.objective is None:
            continue
        for few in range(1, problem.micro_batches):
            part = exact.solve(replace(problem, micro_batches=few), LIMITS)
            assert part.objective is not None, seed
            assert suffix_bound(windows(problem), few, part.objective) <= whole.objective, (seed, few)
            tried += 1
    assert tried >= 200
