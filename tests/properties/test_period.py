"""The period of a schedule against many simulated steps, on random pipelines and lists."""

import sys
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.alternating import random_alternating
from helpers.periods import period_of
from helpers.random_schedules import random_case
from pipeplan.simulate import makespan, period
from pipeplan.simulate.recurrence import least_period
from pipeplan.simulate.recurrence import period as period_without_lists

STEPS = 40


@given(st.integers(0, 2**32))
@example(80)  # stage 0 has replicas, and its first one ends early
@example(96)
@settings(max_examples=150, deadline=None)
def test_the_period_is_the_average_of_many_steps(seed: int) -> None:
    """For any lists, several stages on a device, two lanes, replicas that meet or do not, and shared links."""
    case = random_case(seed)
    assert period(case.schedule, case.pipeline) == period_of(case.schedule, case.pipeline, STEPS)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_without_lists_it_is_the_same(seed: int) -> None:
    """GPipe and 1F1B by their recurrence; the lower bound is one, and no period exceeds its step."""
    case = random_alternating(seed, 30)
    value = period(case.schedule, case.pipeline)
    question = case.pipeline, case.micro_batches, case.in_flight
    assert least_period(*question) <= value <= makespan(case.schedule, case.pipeline)
    assert period_without_lists(*question) == value == period_of(case.schedule, case.pipeline, STEPS)


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_period_of_few_steps_is_no_shorter(seed: int, few: int) -> None:
    """Where fewer steps are simulated the value is the period, or else the step."""
    case = random_case(seed)
    value = period(case.schedule, case.pipeline)
    with patch.object(sys.modules["pipeplan.simulate.long_run"], "MOST_STEPS", few):
        assert period(case.schedule, case.pipeline) in (value, makespan(case.schedule, case.pipeline))
