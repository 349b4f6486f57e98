"""The way-back, own-ending, services and warm-up bounds against the fastest of all schedules of tiny pipelines."""

from itertools import pairwise
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.every_schedule import TinyPipeline, fastest, orders, step_time
from pipeplan_formulations.partition import ChainPartition

MODES = ("none", "copy", "stream")


def as_partition(p: TinyPipeline, micro_batches: int, in_flight: tuple[int, ...] | None = None) -> ChainPartition:
    """One layer per stage, or as many as ``layers`` has; only the partition of `bound` counts."""
    stages, size = len(p.forward), len(p.layers[0]) if p.layers else 1

    def rows(times):  # by the first layer of each stage
        wide = np.zeros(stages * size, np.int64)
        wide[::size] = times
        return np.tile(wide, (stages, 1))

    def links(times):  # by the cut behind the last layer of each stage
        wide = np.zeros(stages * size - 1, np.int64)
        wide[size - 1 :: size] = times
        return np.tile(wide, (stages - 1, 1))

    def of_layers(number):
        return np.tile(np.array([layer[number] for own in p.layers for layer in own], np.int64), (stages, 1))

    nothing = np.zeros(stages, np.int64)
    widths = p.widths()
    periods = [lcm(*pair) for pair in pairwise(widths)]
    return ChainPartition(
        forward=rows(p.forward),
        backward=rows(p.backward),
        update=rows(p.update),
        send=links(p.send),
        send_back=links(p.send_back),
        link=links(p.send),
        latency=np.array(p.latency, dtype=np.int64),
        in_flight=nothing if in_flight is None else np.array(in_flight),
        limit=nothing,
        micro_batches=micro_batches,
        overlap=p.overlap,
        counts=np.array([-(-micro_batches // width) for width in widths]),
        link_counts=np.array([-(-micro_batches // number) for number in periods], dtype=np.int64),
        reduce=of_layers(0) if p.layers else rows(p.reduce or (0,) * stages),
        hides=of_layers(1) if p.layers else rows((0,) * stages),
        reduce_base=np.full(stages, p.base),
        alternating=in_flight is not None,
    )


def bound(p: TinyPipeline, micro_batches: int, in_flight: tuple[int, ...] | None = None) -> int:
    """The right side of the way-back, own-ending and services bounds, and of the warm-up bound with ``in_flight``."""
    size = len(p.layers[0]) if p.layers else 1
    edges = tuple(range(0, size * len(p.forward) + 1, size))
    return as_partition(p, micro_batches, in_flight).evaluate(edges)


@st.composite
def tiny_pipelines(draw, stages: int, replicas: tuple[int, ...] = ()) -> TinyPipeline:
    """Times of 0 to 9, some links slower than any stage, some updates and reductions longer than any step."""
    times = st.integers(0, 9)

    def row(length, values=times):
        return tuple(draw(values) for _ in range(length))

    slow = draw(st.sampled_from([st.just(0), times, st.integers(0, 30)]))
    backward, overlap = row(stages), draw(st.sampled_from(MODES))
    layers = ()
    if replicas and overlap != "none" and draw(st.booleans()):  # parts of the backward hide sums
        cuts = [sorted([0, *row(2, st.integers(0, b)), b]) for b in backward]
        hides = [[(b - a) * draw(st.sampled_from([0, 1, 1])) for a, b in pairwise(own)] for own in cuts]
        layers = tuple(tuple(zip(row(3, st.sampled_from([0, 1, 5, 12])), own, strict=True)) for own in hides)
    return TinyPipeline(
        forward=row(stages),
        backward=backward,
        update=row(stages, st.sampled_from([0, 0, 3, 20])),
        send=row(stages - 1, slow),
        send_back=row(stages - 1, slow),
        latency=row(stages - 1, st.sampled_from([0, 0, 2, 9])),
        overlap=overlap,
        replicas=replicas,
        reduce=row(stages, st.sampled_from([0, 5, 30])) if replicas and not layers else (),
        unlike=draw(st.sampled_from([0, 4])) if replicas else 0,
        layers=layers,
        base=draw(st.sampled_from([0, 2])) if layers else 0,
    )


REPLICAS = [
    ((1, 2), 3),
    ((2, 1), 3),
    ((2, 2), 3),
    ((1, 3), 3),
    ((3, 1), 4),
    ((2, 2), 4),
    ((1, 2, 1), 2),
    ((2, 1, 2), 2),
]
"""Replicas of each stage, and as many micro-batches as can be tried in every order."""


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(REPLICAS), st.data())
def test_no_schedule_of_replicas_beats_the_bound(case, data):
    """Replicas with separate links and a collective reduction: no order ends before the bounds of any schedule."""
    replicas, micro_batches = case
    pipeline = data.draw(tiny_pipelines(len(replicas), replicas))
    assert bound(pipeline, micro_batches) <= fastest(pipeline, micro_batches)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*REPLICAS, ((1, 1), 3), ((1, 1, 1), 2)]), st.data())
def test_no_schedule_within_its_warm_up_beats_the_bound(case, data):
    """Of all orders with at most k_s forwards before the first backward, none ends before the warm-up bound."""
    replicas, micro_batches = case
    pipeline = data.draw(tiny_pipelines(len(replicas), replicas))
    # From the last stage back: with (k_{s+1} − 1) r_{s+1} < k_s r_s no list waits for ever.
    in_flight = [data.draw(st.integers(1, 2))]
    for here, behind in reversed(list(pairwise(replicas))):
        least = (in_flight[0] - 1) * behind // here + 1
        in_flight.insert(0, least + data.draw(st.integers(0, 1)))
    limits = tuple(in_flight)
    assert bound(pipeline, micro_batches, limits) <= fastest(pipeline, micro_batches, limits)


def test_the_bound_of_a_short_warm_up_is_met():
    """Two micro-batches in flight leave the first device idle before its first backward: only the warm-up covers it."""
    pipeline = TinyPipeline((2, 0), (6, 0), (0, 0), (0,), (0,), (2,), "copy")
    assert bound(pipeline, 3) == 3 * 8
    assert bound(pipeline, 3, (2, 1)) == fastest(pipeline, 3, (2, 1)) == 3 * 8 + 2


def test_the_bound_of_a_late_reduction_is_met():
    """If stage 1's reduction outlasts everything, the way to it, its work and its ending are the whole step."""
    pipeline = TinyPipeline((2, 2), (4, 4), (0, 1), (0,), (0,), (0,), "copy", (1, 1), (0, 50))
    assert bound(pipeline, 2) == fastest(pipeline, 2) == 2 + 2 * 6 + 50 + 1


def test_the_bound_of_overlapped_sums_is_met():
    """Layers 2 and 1 are summed while the last backward runs through layers 1 and 0, whose sum alone is left."""
    layers = (((3, 4), (2, 4), (2, 4)), ((0, 0), (0, 0), (0, 0)))
    pipeline = TinyPipeline((6, 1), (12, 1), (1, 0), (0,), (0,), (0,), "copy", (1, 1), layers=layers, base=1)
    assert bound(pipeline, 2) == fastest(pipeline, 2) == 2 * 18 + (1 + 3) + 1


@settings(max_examples=400)
@given(tiny_pipelines(3), st.integers(1, 2))
def test_no_schedule_of_three_stages_beats_the_bound(pipeline, micro_batches):
    """Of all orders of three devices, none ends before the way-back, own-ending and services bounds."""
    assert bound(pipeline, micro_batches) <= fastest(pipeline, micro_batches)


@settings(max_examples=120)
@given(tiny_pipelines(2), st.just(3))
def test_no_schedule_of_three_micro_batches_beats_the_bound(pipeline, micro_batches):
    """Of all orders of two devices with three micro-batches, none ends before the bounds of any schedule."""
    assert bound(pipeline, micro_batches) <= fastest(pipeline, micro_batches)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.sampled_from([*REPLICAS, ((2, 2), 4), ((3, 1), 4), ((2, 2, 2), 2)]), st.data())
def test_no_schedule_of_replicas_beats_the_bound_at_length(case, data):
    """The same on many more pipelines, and on larger ones."""
    test_no_schedule_of_replicas_beats_the_bound.hypothesis.inner_test(case, data)


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.one_of(tiny_pipelines(2), tiny_pipelines(3)), st.integers(1, 2))
def test_no_schedule_beats_the_bound_at_length(pipeline, micro_batches):
    """The same on many more pipelines."""
    assert bound(pipeline, micro_batches) <= fastest(pipeline, micro_batches)


@pytest.mark.parametrize("overlap", MODES)
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 3), (3, 2)])
def test_the_bound_is_met_by_equal_stages_and_free_links(overlap, stages, micro_batches):
    """On equal stages with free links the bound is the fastest schedule, (M + S − 1) (F + B) + U: no slack is left."""
    links = (0,) * (stages - 1)
    pipeline = TinyPipeline((2,) * stages, (4,) * stages, (1,) * stages, links, links, links, overlap)
    expected = (micro_batches + stages - 1) * 6 + 1
    assert bound(pipeline, micro_batches) == expected == fastest(pipeline, micro_batches)


@pytest.mark.parametrize("overlap", ["copy", "stream"])
def test_the_bound_is_met_by_a_slow_link(overlap):
    """If one link is the bottleneck, the services bound equals the fastest schedule."""
    pipeline = TinyPipeline((1, 1), (1, 1), (0, 0), (50,), (0,), (3,), overlap)
    way = 2 + 2 + 6 + (50 if overlap == "copy" else 0)
    expected = way + 2 * 50 if overlap == "copy" else way - 1 + 3 * 50
    assert bound(pipeline, 3) == expected == fastest(pipeline, 3)


def test_orders_are_all_orders():
    """Two micro-batches have six orders on a device, and three have ninety."""
    assert len(orders(2)) == len(set(orders(2))) == 6
    assert len(orders(3)) == len(set(orders(3))) == 90


def test_orders_that_deadlock_have_no_time():
    """A device that waits for the backward of the second micro-batch before its forward has no schedule."""
    pipeline = TinyPipeline((1, 1), (1, 1), (0, 0), (0,), (0,), (0,), "copy")
    stuck = ((("F", 0), ("B", 0), ("F", 1), ("B", 1)), (("F", 1), ("F", 0), ("B", 0), ("B", 1)))
    assert step_time(pipeline, stuck, pipeline.sums()) is None
