"""The recurrence of alternating schedules against the simulator, on random pipelines."""

from dataclasses import replace
from itertools import chain
from math import lcm
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.alternating import elsewhere, random_alternating
from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.shared_weights import with_reductions
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.simulate import makespan, simulate
from pipeplan.simulate.islands import islands, longest_makespan
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


def test_fewer_micro_batches_than_all_pairs_of_replicas_take_to_repeat() -> None:
    """Then some pairs never meet, and no tick repeats an earlier one."""
    few = 0
    for seed in range(20_000, 20_400):
        case = random_alternating(seed, 40)
        if lcm(*case.pipeline.replicas) > case.micro_batches:
            few += 1
            value = makespan(case.schedule, case.pipeline)
            assert step_time(case.pipeline, case.micro_batches, case.in_flight) == value, seed
    assert few > 15


def test_of_tensors_that_are_ready_at_once_that_of_the_lower_device_leaves_first() -> None:
    """Whatever stage is there: devices that share a card may be numbered in another order than that of the stages."""
    shared = 0
    for seed in range(120):
        case = elsewhere(random_alternating(seed, 30), Random(seed))
        if any(way.resources and way.resources[0].startswith("out") for row in case.pipeline.transfers for way in row):
            shared += 1
            value = makespan(case.schedule, case.pipeline)
            assert step_time(case.pipeline, case.micro_batches, case.in_flight) == value, seed
    assert shared > 30


def on_replicas(first: int, second: int, *latencies: int) -> Pipeline:
    """Two stages of so many replicas, whose pairs have these latencies and links of their own."""
    ranks = range(first + second)
    each = replace(line(2, 10, 10, occupancy=3).transfers[0][0])
    ways = (tuple(replace(each, latency=late, resources=(f"{n}",)) for n, late in enumerate(latencies)),)
    back = (tuple(replace(way, resources=(f"back {n}",)) for n, way in enumerate(ways[0])),)
    placement = tuple(ranks[:first]), tuple(ranks[first:])
    limits = (2**62,) * len(ranks)
    pipeline = replace(line(2, 10, 10), placement=placement, transfers=ways, returns=back, limits=limits)
    return replace(pipeline, runtime=(0,) * len(ranks))


@pytest.mark.parametrize("late", [(2, 40), (40, 2)])
def test_replicas_behind_a_late_link_end_last(late: tuple[int, int]) -> None:
    """Pairs of replicas whose links differ in their latency alone are run by themselves."""
    pipeline, counts = on_replicas(2, 2, *late), (2, 1)
    assert step_time(pipeline, 4, counts) == makespan(one_forward_one_backward((2, 2), 4, counts), pipeline)


def test_coupled_replicas_wait_for_those_of_other_lanes() -> None:
    """Four replicas that begin each pass together wait for both of the stage before them, though their pairs repeat."""
    pipeline, counts = replace(on_replicas(2, 4, 2, 2, 40, 40), coupled=True), (3, 1)
    assert step_time(pipeline, 8, counts) == makespan(one_forward_one_backward((2, 4), 8, counts), pipeline)


def side_by_side(pipeline: Pipeline, copies: int, longer: int, joint: bool) -> Pipeline:
    """So many copies of a pipeline in turn, each with resources of its own.

    Transfers of the last one take longer, or use one resource; devices of every other one are in reverse order.
    """

    def ranks(device: int) -> list[int]:
        last = pipeline.devices - 1
        return [copies * (last - device if j % 2 else device) + j for j in range(copies)]

    def each(way: Transfer, j: int) -> Transfer:
        last = j == copies - 1
        names = tuple(
            f"{'card' if joint and last else name} {j}" for name in way.resources[: 1 if joint and last else 2]
        )
        return replace(way, occupancy=way.occupancy + longer * last, resources=names)

    onward, back = (
        tuple(tuple(each(way, j) for way in row for j in range(copies)) for row in rows)
        for rows in (pipeline.transfers, pipeline.returns)
    )
    placement = tuple(tuple(rank for device in own for rank in ranks(device)) for own in pipeline.placement)
    runtime, limits = (row * copies for row in (pipeline.runtime, pipeline.limits))
    return replace(pipeline, placement=placement, transfers=onward, returns=back, runtime=runtime, limits=limits)


def test_replicas_that_share_no_resource_with_others_are_run_by_themselves() -> None:
    """Islands that are alike and others, some with a micro-batch less, as if all of them were run together."""
    parted = 0
    for seed in range(100):
        case, random = random_alternating(seed, 40), Random(seed)
        pipeline = side_by_side(case.pipeline, 3, random.choice([0, 0, 5]), random.random() < 0.3)
        many = 3 * case.micro_batches if pipeline.coupled else max(3 * case.micro_batches - random.randrange(3), 1)
        counts = case.in_flight
        parted += all(part.replicas < pipeline.replicas for part, _ in islands(pipeline, many))
        written = with_reductions(one_forward_one_backward(pipeline.replicas, many, counts), pipeline.tied)
        listed = zip(chain.from_iterable(pipeline.placement), written.orders, strict=True)
        schedule = replace(written, orders=tuple(order for _, order in sorted(listed)))
        assert step_time(pipeline, many, counts) == makespan(schedule, pipeline), seed
        assert longest_makespan(schedule, pipeline) == makespan(schedule, pipeline), seed
    assert parted > 50


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("occupancy", [3, 25])
def test_tensors_that_keep_no_link_busy_arrive_as_late(occupancy: int, overlap: Overlap) -> None:
    """Also those that take longer than the action that makes them; none waits for another."""
    pipeline = line(2, 10, 10, occupancy=occupancy, latency=2, overlap=overlap)
    onward, back = (
        tuple(tuple(replace(way, resources=()) for way in row) for row in rows)
        for rows in (pipeline.transfers, pipeline.returns)
    )
    pipeline, counts = replace(pipeline, transfers=onward, returns=back), (2, 1)
    assert step_time(pipeline, 4, counts) == makespan(one_forward_one_backward((1, 1), 4, counts), pipeline)


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
