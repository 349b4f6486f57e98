"""The recurrence of alternating schedules against the simulator, on random pipelines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.alternating import random_alternating
from pipeplan.simulate import makespan, simulate
from pipeplan.simulate.recurrence import peaks, step_time


def agrees(seed: int, most_micro_batches: int = 200) -> bool:
    """Check one random pipeline; return whether the recurrence's time is exact."""
    case = random_alternating(seed, most_micro_batches)
    question = case.pipeline, case.micro_batches, case.in_flight
    found, value = step_time(*question), makespan(case.schedule, case.pipeline)
    assert found.nanoseconds == value if found.exact else found.nanoseconds <= value, seed
    assert step_time(*question, leaps=False) == found, seed
    assert step_time(*question, check=False).nanoseconds == found.nanoseconds, seed
    return found.exact


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_the_recurrence_equals_the_simulator(seed: int) -> None:
    """It is exact, or says that it is a lower bound; leaps change nothing."""
    agrees(seed)


@pytest.mark.slow
def test_the_recurrence_equals_the_simulator_on_20_000_pipelines() -> None:
    """The same, and most of the pipelines have exact times."""
    assert sum(agrees(seed) for seed in range(20_000)) > 10_000


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_without_sharing_it_is_the_relaxed_simulation(seed: int) -> None:
    """With a link for each pair of replicas the value is the simulator's, whatever is shared."""
    case = random_alternating(seed, 40)
    relaxed = simulate(case.schedule, case.pipeline, share=False).makespan
    assert step_time(case.pipeline, case.micro_batches, case.in_flight).nanoseconds == relaxed


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_peaks_need_no_times(seed: int) -> None:
    """The peaks are the simulator's, also where actions take no time or a replica has nothing to do."""
    case = random_alternating(seed, 40)
    assert peaks(case.pipeline, case.micro_batches, case.in_flight) == simulate(case.schedule, case.pipeline).peaks
