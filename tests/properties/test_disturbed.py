"""Perturbed steps: two ways to run them agree, nothing is perturbed without a spread, and no mean beats the means."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.happening import happens
from helpers.pipelines import line
from helpers.random_schedules import Case, random_case
from pipeplan.core.perturbation import Robust
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import makespan
from pipeplan.simulate.perturbed.factors import Factors
from pipeplan.simulate.perturbed.lockstep import last_ends
from pipeplan.simulate.perturbed.replay import replayed
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.simulate.perturbed.sequence import has_own_resources, topological_groups
from pipeplan.simulate.perturbed.times import Times, perturbed
from pipeplan.simulate.program import build_program

SEEDS = st.integers(0, 10**6)
WIDE = Robust(0.4, 0.3)


def steps(case: Case, samples: int, seed: int = 0) -> list[int]:
    """Perturbed steps of a case."""
    return step_times(case.schedule, case.pipeline, WIDE, samples=samples, seed=seed).tolist()


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_all_samples_at_once_equal_the_event_loop(seed: int) -> None:
    """Where no links are shared, lockstep and the event loop give the same nanoseconds, sample by sample."""
    case = random_case(seed, shared_resources=False)
    program = build_program(case.schedule, case.pipeline, True)
    assert has_own_resources(program)
    times = perturbed(program, Factors(WIDE.spread, WIDE.device_spread, seed, 0), range(case.pipeline.devices))
    assert last_ends(program, topological_groups(program), times)[:5].tolist() == replayed(program, times, 5).tolist()


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_without_a_spread_every_step_is_the_simulated_one(seed: int) -> None:
    """Spread 0 is the nominal step, on shared links too."""
    case = random_case(seed)
    found = step_times(case.schedule, case.pipeline, Robust(0.0), samples=2)
    assert set(found.tolist()) == {makespan(case.schedule, case.pipeline)}


@given(SEEDS, st.integers(1, 130), st.integers(1, 130))
@settings(max_examples=30, deadline=None)
def test_a_seed_gives_the_same_steps_however_many_are_asked_for(seed: int, few: int, many: int) -> None:
    """The same seed repeats, and more samples begin with the fewer ones."""
    case = random_case(seed, least_time=1, shared_resources=False)
    few, many = sorted((few, many))
    found = steps(case, many, seed)
    assert found == steps(case, many, seed)
    assert found[:few] == steps(case, few, seed)


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_the_step_is_a_convex_function_of_the_times(seed: int) -> None:
    """(Jensen, exactly) Where no links are shared, steps of several disturbances take no less in sum than the step of
    the summed times: the sum of times is their mean, scaled."""
    case = random_case(seed, shared_resources=False)
    program = build_program(case.schedule, case.pipeline, True)
    order = topological_groups(program)
    times = perturbed(program, Factors(WIDE.spread, WIDE.device_spread, seed, 0), range(case.pipeline.devices))
    assert last_ends(program, order, times).sum() >= last_ends(program, order, summed(times))[0]


def summed(times: Times) -> Times:
    """One sample in which everything takes as long as in all samples together."""
    rows = (times.durations, times.occupancies, times.latencies)
    return Times(*(row.sum(axis=1, keepdims=True) for row in rows), times.transfer_of)


def test_times_are_rounded_up_and_slow_devices_slow_all_they_compute() -> None:
    """What a device computes takes its own factor times the device's, a transfer only its own, all rounded up."""
    pipeline = line(2, 1000, 2000, occupancy=100, latency=7)
    program = build_program(FAMILIES["1f1b-sno"].write((1, 1), 3), pipeline, True)
    factors = Factors(0.2, 0.3, 5, 0)
    times = perturbed(program, factors, (4, 6))
    slow, own = factors.of_device(6), factors.of_actions(6, Kind.BACKWARD, 3)
    way = factors.of_transfers(6, 4, 3)
    for m in range(3):
        i = program.actions.index(Action(Kind.BACKWARD, 1, m))
        assert times.durations[i].tolist() == np.ceil(2000 * (own[m] * slow)).tolist()
        assert times.occupancies[times.transfer_of[i]].tolist() == np.ceil(100 * way[m]).tolist()
        assert times.latencies[times.transfer_of[i]].tolist() == np.ceil(7 * way[m]).tolist()


@pytest.mark.happens(0.3)
@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_a_collective_takes_as_long_on_every_replica(seed: int) -> None:
    """Replicas that reduce together end together in every perturbed step."""
    case = random_case(seed)
    program = build_program(case.schedule, case.pipeline, True)
    times = perturbed(program, Factors(0.4, 0.4, seed, 0), range(case.pipeline.devices))
    for together in program.collectives:
        if happens(len({program.durations[i] for i in together}) == 1):
            assert (times.durations[together] == times.durations[together[0]]).all()


@given(st.floats(0.01, 0.5), SEEDS)
@settings(max_examples=20, deadline=None)
def test_factors_have_mean_one_and_the_spread_asked_for(spread: float, seed: int) -> None:
    """Over 200,000 factors the mean is 1 and the variance the spread's square, within five standard errors."""
    row = Factors(spread, 0.0, seed, 0).of_actions(0, Kind.FORWARD, 2000).ravel()
    w = 1 + spread**2
    kurtosis = w**4 + 2 * w**3 + 3 * w**2 - 3  # of a log-normal variable
    assert abs(row.mean() - 1) < 5 * spread / len(row) ** 0.5
    assert abs(row.var() / spread**2 - 1) < 5 * ((kurtosis - 1) / len(row)) ** 0.5


def test_a_shared_card_may_make_disturbed_steps_faster_on_average() -> None:
    """Who is ready first takes the card, which may be the wrong order where nothing varies: then the mean lies below
    the nominal step, and a bound on that is none on the mean. With links of their own it does not."""
    schedule = FAMILIES["1f1b-sno"].write((1,) * 4, 4)

    def excess(card: str | None) -> float:
        """Mean over nominal, and 1 less, in standard errors."""
        pipeline = line(4, 10_000, 10_000, occupancy=5_000, resource=card)
        found = step_times(schedule, pipeline, Robust(0.05), samples=400) / makespan(schedule, pipeline) - 1
        return float(found.mean() / (found.std() / len(found) ** 0.5))

    assert excess("card") < -10
    assert excess(None) > -3


def test_what_a_device_does_is_disturbed_alike_in_other_schedules() -> None:
    """Common random numbers: a pipeline whose devices have other numbers meets the same factors under their names."""
    case = random_case(11, least_time=5, shared_resources=False)
    shift = 3
    moved = renumbered(case.pipeline, shift)
    empty: tuple[tuple, ...] = ((),) * shift
    schedule = replace(case.schedule, orders=empty + case.schedule.orders)
    names = [99] * shift + list(range(case.pipeline.devices))
    there = step_times(schedule, moved, WIDE, samples=20, devices=names)
    assert there.tolist() == steps(case, 20)
    assert step_times(schedule, moved, WIDE, samples=20).tolist() != steps(case, 20)


def renumbered(pipeline: Pipeline, shift: int) -> Pipeline:
    """The same pipeline behind so many devices that do nothing."""
    return replace(
        pipeline,
        placement=tuple(tuple(d + shift for d in homes) for homes in pipeline.placement),
        runtime=(0,) * shift + pipeline.runtime,
        limits=(0,) * shift + pipeline.limits,
    )
