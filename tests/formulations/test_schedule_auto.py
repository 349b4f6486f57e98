"""Automatic choice of the schedule back end by the size of the problem."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import exhaustive_orders
from helpers.lines import line
from helpers.pipeline_schedules import random_ways
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.schedule import Orders, PipelineSchedule, auto, cpsat, evaluate, long_steps, solve

SHORT = Limits(time=3.0, workers=1)
SOON = Limits(time=60.0, gap=0.09, workers=1)
"""Ends at a schedule that is close to the bound, also on a busy machine."""


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_small_steps_are_proved(seed):
    """By default a small step is solved to the optimum, or found infeasible."""
    problem = random_ways(seed)
    report, oracle = solve(problem, Limits(time=20.0)), exhaustive_orders.solve(problem, Limits(time=20.0))
    assert (report.status, report.objective) == (oracle.status, oracle.objective)


Told = list[tuple[int | None, int]]


def count_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred operations count as many, whose model is built at once."""
    monkeypatch.setattr(auto, "FEW", 200)
    monkeypatch.setattr(auto, "BUILD", 0.0)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred operations count as many."""
    count_as_many(monkeypatch)


@pytest.fixture(scope="module")
def long_step() -> tuple[PipelineSchedule, Report[Orders], Told]:
    """A step for both back ends, its report, and the progress on the way."""
    problem, told = line(4, 80, 2, 0.3), []
    with pytest.MonkeyPatch.context() as monkeypatch:
        count_as_many(monkeypatch)
        return problem, solve(problem, SHORT, on_progress=lambda value, bound: told.append((value, bound))), told


def test_many_micro_batches_ask_both(long_step):
    """List schedules come first and CP-SAT starts from their orders; the report has the better bound of both."""
    problem, report, _ = long_step
    assert len(problem.everything()) > 200
    assert report.backend == "lists, cpsat"
    assert report.solution is not None and evaluate(problem, report.solution) == report.objective
    assert report.bound >= long_steps.step_bound(problem)


def test_models_too_large_are_left_to_list_schedules(monkeypatch):
    """If the model is too large for CP-SAT, list schedules get all of the time."""
    monkeypatch.setattr(cpsat, "PAIRS", 100)
    report = solve(line(3, 60, 3), SOON)
    assert report.backend == "lists"
    assert report.gap is not None and report.gap < 0.1


def test_no_model_is_built_that_takes_all_of_the_time(many, monkeypatch):
    """If building the model takes more than CP-SAT's share of the time, list schedules get all of it."""
    monkeypatch.setattr(auto, "BUILD", 1.0)
    assert solve(line(3, 60, 3), SOON).backend == "lists"


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("micro_batches", [4, 120])
def test_the_hint_survives(micro_batches):
    """With very little time the result is no worse than the hint; a hint of another step is ignored."""
    problem = line(3, micro_batches, 2, 0.3)
    best = solve(problem, SOON)
    again = solve(problem, Limits(time=0.05), hint=best.solution)
    assert best.objective is not None and again.objective is not None
    assert again.objective <= best.objective
    other = solve(replace(problem, micro_batches=micro_batches + 1), Limits(time=0.05), hint=best.solution)
    assert other.solution != best.solution


def test_progress_of_both_is_one_line(long_step):
    """Incumbents fall and bounds rise through both; the last ones are the report's."""
    _, report, told = long_step
    values, bounds = [value for value, _ in told if value is not None], [bound for _, bound in told]
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert (values[-1], bounds[-1]) == (report.objective, report.bound)


def test_an_interrupt_of_the_first_ends_both(many):
    """An interrupt during list scheduling returns the best orders so far, without a second search."""

    def interrupt(value: int | None, bound: int) -> None:
        raise KeyboardInterrupt

    report = solve(line(4, 80, 2), replace(SOON, gap=0.0), on_progress=interrupt)
    assert (report.stop, report.backend) == (Stop.INTERRUPT, "lists")
    assert report.status is Status.FEASIBLE


def test_nothing_fits_a_long_step():
    """A long step that does not fit in memory is infeasible at once."""
    report = solve(replace(line(4, 80, 2), limit=(99,) * 4), SHORT)
    assert (report.status, report.solution) == (Status.INFEASIBLE, None)
