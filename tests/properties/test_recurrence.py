"""The recurrence of alternating schedules against the simulator, on random pipelines."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.alternating import random_alternating
from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.simulate import makespan, simulate
from pipeplan.simulate.recurrence import least_step_time, peaks, step_time
from pipeplan.simulate.recurrence.leaps import SLOPE, _Leaps, run
from pipeplan.simulate.recurrence.ticks import Recurrence


def check(seed: int, most_micro_batches: int = 200) -> None:
    """Compare one random pipeline."""
    case = random_alternating(seed, most_micro_batches)
    question = case.pipeline, case.micro_batches, case.in_flight
    value = makespan(case.schedule, case.pipeline)
    assert least_step_time(*question) <= step_time(*question) == value, seed
    ticks = Recurrence(*question)
    assert run(ticks, leaps=False) == run(ticks), seed


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_the_recurrence_equals_the_simulator(seed: int) -> None:
    """Step times are equal, with shared resources or without, coupled or not; leaps over periods change nothing."""
    check(seed)


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("occupancy", [3, 12, 17, 25])
def test_a_link_of_its_own_beside_shared_ones_takes_turns(occupancy: int, overlap: Overlap) -> None:
    """A link that is busy for longer than an action delays the next tensor, also where it leaves while it is made."""
    pipeline = line(3, 10, 10, occupancy=occupancy, latency=2, overlap=overlap)
    shared = replace(pipeline.transfers[1][0], occupancy=4, resources=("card",))
    mixed = replace(
        pipeline,
        transfers=(pipeline.transfers[0], (shared,)),
        returns=(pipeline.returns[0], (replace(shared, occupancy=5),)),
    )
    counts = (7, 5, 3)
    schedule = one_forward_one_backward((1, 1, 1), 9, counts)
    assert step_time(mixed, 9, counts) == makespan(schedule, mixed)


@pytest.mark.parametrize(("before", "linear"), [(100 - 4 * 7, True), (100 - 4 * 7 - 1, False)])
def test_transfers_of_a_leap_must_lie_on_a_line(before: int, linear: bool) -> None:
    """The last of four repetitions sends at 100, 7 later than the one before: so the one ahead of all sent at 72."""
    walk = SimpleNamespace(logs={0: [5, before]})
    found = _Leaps.__new__(_Leaps)
    vars(found).update(_walk=walk, _trial=SimpleNamespace(logs={0: [100 * SLOPE - 7]}), _record={0: []})
    assert found._log_leap(4) == linear
    assert [own.repetitions for own in found._record[0]] == [1, 4] * linear


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_recurrence_equals_the_simulator_on_20_000_pipelines() -> None:
    """The same on a fixed set of pipelines."""
    for seed in range(20_000):
        check(seed)


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_without_sharing_it_is_the_relaxed_simulation(seed: int) -> None:
    """With a link for each pair of replicas that wait for no others the value is the simulator's."""
    case = random_alternating(seed, 40)
    relaxed = simulate(case.schedule, replace(case.pipeline, coupled=False), share=False).makespan
    assert least_step_time(case.pipeline, case.micro_batches, case.in_flight) == relaxed


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_peaks_need_no_times(seed: int) -> None:
    """The peaks are the simulator's, also where actions take no time or a replica has nothing to do."""
    case = random_alternating(seed, 40)
    assert peaks(case.pipeline, case.micro_batches, case.in_flight) == simulate(case.schedule, case.pipeline).peaks
