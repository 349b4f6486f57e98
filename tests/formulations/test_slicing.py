"""Slices of a sequence: the search over the longest slice against all slicings and against CP-SAT."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from helpers.quick import examples
from helpers.scripts import script
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Report, Status
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.slicing import Cuts, Slicing, solve
from pipeplan_formulations.slicing.intervals import Intervals

published = script("benchmarks/published_slices.py")


@st.composite
def slicings(draw: st.DrawFn, most: int = 9) -> Slicing:
    """Times of any sort, with ties, zeros, and slices that may not be."""
    n = draw(st.integers(1, most))
    largest = draw(st.sampled_from([1, 3, 10, 1000, 10**12]))
    forbidden = draw(st.sampled_from([0, 0, 1, 3]))
    time = st.integers(0, largest)
    slices = st.one_of([*[time] * 4, *[st.just(UNLIMITED)] * forbidden])
    times = np.zeros((n + 1, n + 1), np.int64)
    for end in range(1, n + 1):
        times[end, :end] = draw(st.lists(slices, min_size=end, max_size=end))
    return Slicing(times, draw(st.integers(1, 12)), draw(st.integers(1, 4)))


def every_value(problem: Slicing) -> list[int]:
    """T of all slicings that may be."""
    inner = range(1, problem.units)
    every = [(0, *cuts, problem.units) for count in range(problem.units) for cuts in combinations(inner, count)]
    return [problem.evaluate(cuts) for cuts in every if max(problem.of(cuts)) < UNLIMITED]


def by_cpsat(problem: Slicing) -> int | None:
    """Least T by a path of slices whose longest one is a variable."""
    model, n = cp_model.CpModel(), problem.units
    arcs = {
        (j, e): model.new_bool_var("") for e in range(1, n + 1) for j in range(e) if problem.times[e, j] < UNLIMITED
    }
    for unit in range(n + 1):
        leaving = sum(arc for (j, _), arc in arcs.items() if j == unit)
        entering = sum(arc for (_, e), arc in arcs.items() if e == unit)
        model.add(leaving + (unit == n) == entering + (unit == 0))
    longest = model.new_int_var(0, max((int(problem.times[e, j]) for j, e in arcs), default=0), "")
    for (j, e), arc in arcs.items():
        model.add(longest >= int(problem.times[e, j])).only_enforce_if(arc)
    total = sum(int(problem.times[e, j]) * arc for (j, e), arc in arcs.items())
    model.minimize(problem.sequences * total + (problem.stages - 1) * longest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return round(solver.objective_value) if solver.solve(model) == cp_model.OPTIMAL else None


def agrees(problem: Slicing, report: Report[Cuts], least: int | None) -> bool:
    """Whether a report has the least value, with slices that take it."""
    if least is None:
        return report.status is Status.INFEASIBLE
    assert report.solution is not None
    return (report.objective, report.bound, problem.evaluate(report.solution)) == (least, least, least)


@given(slicings())
@examples(500, 2000)
def test_the_answer_is_the_best_of_all_slicings(problem: Slicing) -> None:
    """Infeasible ones are said to be."""
    assert agrees(problem, solve(problem, Limits()), min(every_value(problem), default=None))


@given(slicings(16))
@examples(60, 500)
def test_the_answer_is_that_of_cpsat(problem: Slicing) -> None:
    """On more units than can be tried one by one."""
    assert agrees(problem, solve(problem, Limits()), by_cpsat(problem))


@given(slicings(), st.integers(0, 8))
@examples(200, 1000)
def test_bounds_on_the_way_hold(problem: Slicing, steps: int) -> None:
    """However early the search ends."""
    search = Intervals(problem, Limits())
    for _ in range(steps):
        if search.open:
            search.step()
    values = every_value(problem)
    assert not values or search.bound <= min(values)
    assert search.value is None or search.value in values


def falling(units: int, stages: int) -> Slicing:
    """Slices with a constant part, a part for each unit, and one for what attention reads."""
    end, start = np.arange(units + 1)[:, None], np.arange(units + 1)[None, :]
    length = np.maximum(end - start, 0)
    return Slicing((1000 + 30 * np.maximum(length, 4) + length * (2 * start + length)).astype(np.int64), stages)


def test_slices_get_shorter_where_they_read_more() -> None:
    """Where attention counts, slices of equal times are shorter and shorter; one stage needs one slice."""
    cuts = solve(falling(128, 24), Limits()).solution
    assert cuts is not None
    lengths = np.diff(cuts)
    assert len(lengths) > 4
    assert lengths[0] > lengths[-1]
    assert solve(falling(128, 1), Limits()).solution == (0, 128)


@pytest.mark.parametrize(
    ("times", "stages", "error"),
    [
        (np.zeros((1, 1), np.int64), 1, ValueError),
        (np.zeros((2, 3), np.int64), 1, ValueError),
        (np.zeros((2, 2), np.int64), 0, ValueError),
        (np.full((2, 2), -1), 1, ValueError),
        (np.full((2, 2), 2**60), 9, BeyondIntegersError),
    ],
)
def test_what_is_no_slicing_is_refused(times: np.ndarray, stages: int, error: type[Exception]) -> None:
    """Shapes, signs and numbers; sums beyond 64 bits."""
    with pytest.raises(error):
        Slicing(times, stages)


def test_published_slices_take_as_long_as_the_fit_of_others_says() -> None:
    """TeraPipe, 175B: from equal slices alone the time of the published ones follows within 5 %; ours are no worse."""
    fit = published.of_175b()
    step = fit.step(published.STAGES_175B, 2, published.UNLIKE)
    assert step == pytest.approx(published.PUBLISHED, rel=0.05)
    best, slices = fit.best(published.STAGES_175B, 2, 2048, 8)
    assert best <= step
    assert sum(slices) == 2048


def test_longer_sequences_gain_more_by_slices_as_published() -> None:
    """TeraPipe, 13B: from whole sequences alone times of sliced ones follow within 5 %, for 2,048 to 8,192 tokens."""
    fit = published.of_13b()
    for tokens, (sequences, _) in published.WHOLE.items():
        best, _ = fit.best(published.STAGES_13B, sequences, tokens, 16)
        assert best == pytest.approx(published.SLICED[tokens], rel=0.05)
