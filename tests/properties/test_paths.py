"""Path cuts: exact for the simulated pipeline, and lower bounds for all others."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pipelines import line
from helpers.random_schedules import (
    Placement,
    Ways,
    random_pipeline,
    random_placement,
    random_schedule,
    stage_by_stage,
    with_gathers,
)
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Span, Timeline
from pipeplan.schedules import FAMILIES, first_deadlock, one_forward_one_backward
from pipeplan.search.path_cuts import as_cut, find_path_cut, read_path
from pipeplan.search.visits import find_visited_path
from pipeplan.simulate import simulate
from pipeplan_formulations.partition import PathCut

widths = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def length(cut: PathCut, pipeline: Pipeline) -> int:
    """The right side of the cut, term by term."""
    stages = pipeline.stages
    terms = [
        (cut.forward, [stage.forward for stage in stages]),
        (cut.backward, [stage.backward for stage in stages]),
        (cut.update, [stage.update for stage in stages]),
        (cut.reduce, [stage.reduce for stage in stages]),
        (cut.send, [min(way.occupancy for way in ways) for ways in pipeline.transfers]),
        (cut.send_back, [min(way.occupancy for way in ways) for ways in pipeline.returns]),
    ]
    return cut.constant + sum(a * x for row, values in terms for a, x in zip(row, values, strict=True))


def priced(
    random: Random, placement: Placement, devices: int, latencies: list[int], *, shared: bool, alike: bool
) -> Pipeline:
    """Random times and transfers; boundary s has latency ``latencies[s]`` both ways.

    ``shared``: some share link resources. ``alike``: the transfers of one boundary take equally long.
    """
    pipeline = random_pipeline(random, placement, devices, 0, shared)

    def late(ways: Ways, name: str) -> Ways:
        resource = "x" if shared else ""
        return tuple(
            tuple(
                replace(
                    row[0] if alike else way,
                    latency=latency,
                    resources=(*way.resources, f"{name} {s}{resource or p}"),
                )
                for p, way in enumerate(row)
            )
            for s, (row, latency) in enumerate(zip(ways, latencies, strict=True))
        )

    return replace(pipeline, transfers=late(pipeline.transfers, "down"), returns=late(pipeline.returns, "up"))


@given(widths, st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_paths_over_unlike_links_are_exact(replicas, micro_batches, seed):
    """With the surplus of each pair's link, a path's length is the simulated step time, and a bound for the others."""
    random = Random(seed)
    placement, devices = stage_by_stage(replicas), sum(replicas)
    latencies = [random.randint(0, 9) for _ in placement[1:]]
    schedule = random.choice([FAMILIES[name] for name in ("gpipe", "1f1b-sno", "1f1b-so")]).write(
        replicas, micro_batches
    )
    here = mirrored(priced(random, placement, devices, latencies, shared=False, alike=False))
    numbers = {key: i for i, key in enumerate((s, m) for s, period in enumerate(here.periods) for m in range(period))}
    cut = find_path_cut(schedule, here, lambda s, m: np.eye(len(numbers), dtype=np.int64)[numbers[s, m]])
    assert beyond(cut, here) + length(cut, here) == simulate(schedule, here, share=False).makespan
    for _ in range(4):
        other = mirrored(priced(random, placement, devices, latencies, shared=True, alike=False))
        there = replace(other, overlap=here.overlap)
        assert beyond(cut, there) + length(cut, there) <= simulate(schedule, there).makespan


def mirrored(pipeline: Pipeline) -> Pipeline:
    """The pipeline with transfers of gradients as long as those of activations."""
    rows = zip(pipeline.transfers, pipeline.returns, strict=True)
    pairs = (zip(down, up, strict=True) for down, up in rows)
    returns = tuple(tuple(replace(b, occupancy=a.occupancy) for a, b in row) for row in pairs)
    return replace(pipeline, returns=returns)


def beyond(cut: PathCut, pipeline: Pipeline) -> int:
    """Surplus of the cut's transfers over the least; entries of its rows stand for pairs of devices."""
    more = [way.occupancy - min(w.occupancy for w in ways) for ways in pipeline.transfers for way in ways]
    return sum(count * time for _, row in cut.surplus for count, time in zip(row, more, strict=True))


def check(random: Random, schedule: Schedule, placement: Placement, devices: int) -> None:
    """Check a cut from one pipeline at others with the same latencies and overlap, with any shared links."""
    latencies = [random.randint(0, 9) for _ in placement[1:]]
    alike = random.random() < 0.6
    here = priced(random, placement, devices, latencies, shared=False, alike=alike)
    timeline = simulate(schedule, here, share=False)
    if schedule.two_lanes and splits(timeline):
        return  # refused, as another test holds
    path = read_path(timeline.critical, here, schedule)
    assert path.length(here) <= timeline.makespan
    assert path.length(here) == timeline.makespan or not alike
    cut = None if splits(timeline) else as_cut(timeline.critical, here, schedule)
    assert cut is None or cut == find_path_cut(schedule, with_gathers(random, here, 9))
    for _ in range(4):
        other = priced(random, placement, devices, latencies, shared=True, alike=random.random() < 0.5)
        there = replace(other, overlap=here.overlap)
        relaxed, shared = (simulate(schedule, there, share=share).makespan for share in (False, True))
        assert path.length(there) <= relaxed <= shared
        assert cut is None or length(cut, there) == path.length(there)
        gathering = with_gathers(random, there, 9)  # the first stage's gathers count as parts of its reduction
        if cut is not None:
            first = cut.reduce[0] * gathering.begins[0]
            assert first + length(cut, there) <= simulate(schedule, gathering).makespan


def splits(timeline: Timeline) -> bool:
    """Return True if half a backward lies on the critical path."""
    halves = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    return any(isinstance(item, Span) and item.action.kind in halves for item in timeline.critical)


@given(st.integers(0, 2**32), st.sampled_from(sorted(FAMILIES)), widths, st.integers(1, 8))
@settings(max_examples=400, deadline=None)
def test_cuts_of_families(seed: int, name: str, replicas: list[int], micro_batches: int) -> None:
    """Every family and overlap, with replicas, random latencies, and shared links in other pipelines."""
    schedule = FAMILIES[name].write(replicas, micro_batches)
    check(Random(seed), schedule, stage_by_stage(replicas), sum(replicas))


@given(st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_cuts_of_any_order(seed: int) -> None:
    """Any order of joined and split backwards, several stages per device, replicas, reductions, one lane or two."""
    random = Random(seed)
    devices = random.randint(1, 4)
    placement = random_placement(random, random.randint(1, 4), devices)
    schedule = random_schedule(random, placement, devices, joined=random.random() < 0.5)
    check(random, schedule, placement, devices)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_a_path_within_a_box_bounds_all_its_counts(replicas: list[int], micro_batches: int, seed: int) -> None:
    """The path of any counts, within a box of any counts, is no longer than any step of any pipeline in the box."""
    random = Random(seed)
    placement, devices = stage_by_stage(replicas), sum(replicas)
    latencies = [random.randint(0, 9) for _ in placement[1:]]
    here = mirrored(priced(random, placement, devices, latencies, shared=False, alike=False))
    here = replace(here, overlap=Overlap.COPY)
    numbers = {key: i for i, key in enumerate((s, m) for s, period in enumerate(here.periods) for m in range(period))}

    def surplus(s: int, m: int) -> np.ndarray:
        return np.eye(len(numbers), dtype=np.int64)[numbers[s, m]]

    shares = [-(-micro_batches // r) for r in replicas]
    every = [
        counts
        for counts in product(*(range(1, share + 1) for share in shares))
        if first_deadlock(replicas, counts) is None
    ]
    own = random.choice(every)
    schedule = one_forward_one_backward(replicas, micro_batches, own)
    path = find_visited_path(schedule, here, surplus)
    assert path.within(own, own) == find_path_cut(schedule, here, surplus)
    for _ in range(6):
        ends = random.choice(every), random.choice([own, *every])
        low, high = tuple(map(min, *ends)), tuple(map(max, *ends))
        inside = [counts for counts in every if all(a <= k <= b for a, k, b in zip(low, counts, high, strict=True))]
        cut = path.within(low, high)
        if cut is None or not inside:
            continue
        for counts in random.sample(inside, min(4, len(inside))):
            other = mirrored(priced(random, placement, devices, latencies, shared=random.random() < 0.5, alike=False))
            for there in (here, replace(other, overlap=Overlap.COPY)):
                step = simulate(one_forward_one_backward(replicas, micro_batches, counts), there).makespan
                assert beyond(cut, there) + length(cut, there) <= step


def test_a_cut_reads_as_drawn() -> None:
    """The picture of `pipeplan.search.path_cuts`: the path waits for one micro-batch more on the last stage."""
    pipeline = line(2, 0, 0, times=[(1, 1), (5, 5)], occupancy=2, latency=3)
    schedule = FAMILIES["gpipe"].write((1, 1), 2)
    cut = as_cut(simulate(schedule, pipeline, share=False).critical, pipeline, schedule)
    assert cut == PathCut((1, 2), (1, 2), update=(1, 0), send=(1,), send_back=(1,), constant=6, reduce=(0, 0))


def test_a_streamed_tensor_counts_instead_of_its_action() -> None:
    """Where the transfer takes longer than the action, the path goes from the action's start through the send."""
    pipeline = line(2, 4, 6, occupancy=9, latency=1, overlap=Overlap.STREAM)
    schedule = FAMILIES["1f1b-as"].write((1, 1), 1)
    cut = as_cut(simulate(schedule, pipeline, share=False).critical, pipeline, schedule)
    assert cut == PathCut((0, 1), (1, 0), update=(1, 0), send=(1,), send_back=(1,), constant=2, reduce=(0, 0))


def test_a_path_changes_replicas_at_their_reduction() -> None:
    """The update of one replica waits for the reduction, and that for the last backward of the other replica.

    The path's second send is the slower pair's 3 ns; the cut counts the faster pair's 2, which bounds both.
    """
    ways = ((Transfer(1, 2, 1, ("a",)), Transfer(1, 3, 1, ("b",))),)
    pipeline = replace(
        line(2, 5, 7), placement=((0, 1), (2,)), transfers=ways, returns=ways, runtime=(0,) * 3, limits=(2**62,) * 3,
        stages=(Stage(5, 7, reduce=11, update=13), Stage(5, 7)),
    )  # fmt: skip
    schedule = FAMILIES["gpipe"].write((2, 1), 4)
    timeline = simulate(schedule, pipeline, share=False)
    spans = [(item.device, str(item.action)) for item in timeline.critical if isinstance(item, Span)]
    assert spans[-3:] == [(1, "0B3"), (0, "0R"), (0, "0U")]
    cut = as_cut(timeline.critical, pipeline, schedule)
    assert cut == PathCut((1, 4), (1, 4), update=(1, 0), send=(1,), send_back=(1,), constant=2, reduce=(1, 0))
    assert length(cut, pipeline) == timeline.makespan - 1


def test_a_path_counts_the_least_latency_of_a_boundary() -> None:
    """It bounds a step in which its tensors take the faster link, though that of the first pair of replicas is slow."""
    ways = ((Transfer(1, 2, 4, ("a",)), Transfer(1, 2, 1, ("b",))),)
    pipeline = replace(
        line(2, 5, 7), placement=((0, 1), (2,)), transfers=ways, returns=ways, runtime=(0,) * 3, limits=(2**62,) * 3
    )
    schedule = FAMILIES["gpipe"].write((2, 1), 4)
    path = read_path(simulate(schedule, pipeline, share=False).critical, pipeline, schedule)
    assert find_path_cut(schedule, pipeline).constant == sum((*path.latency, *path.latency_back)) > 0


def test_paths_without_a_term_are_refused() -> None:
    """A split backward on the path, or two boundaries on one link, raise an error that says so."""
    split = Schedule.from_text("split", ["0F0 0I0 0W0"])
    pipeline = line(1, 1, 1)
    pipeline = replace(pipeline, stages=(replace(pipeline.stages[0], input_gradient=1, weight_gradient=1),))
    with pytest.raises(PlanError, match="0I0, for which the partition problem has no term"):
        as_cut(simulate(split, pipeline, share=False).critical, pipeline, split)
    with pytest.raises(PlanError, match="0I0 on two lanes, whose time is no sum"):
        two = replace(split, two_lanes=True)
        as_cut(simulate(two, pipeline, share=False).critical, pipeline, two)
    pipeline = line(3, 1, 1, occupancy=10, resource="card")
    schedule = FAMILIES["gpipe"].write((1,) * 3, 4)
    with pytest.raises(PlanError, match="share=False"):
        as_cut(simulate(schedule, pipeline).critical, pipeline, schedule)
    assert as_cut(simulate(schedule, pipeline, share=False).critical, pipeline, schedule).send != ()
