"""The bounds of a step against the simulator, for the schedules of all families."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import lcm
from random import Random

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.random_schedules import random_pipeline, stage_by_stage
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.core.shared_weights import with_reductions
from pipeplan.schedules import FAMILIES, first_deadlock, one_forward_one_backward
from pipeplan.simulate import period, simulate
from pipeplan_formulations.partition import ChainPartition, LinkResource, Tie

widths = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def as_partition(pipeline: Pipeline, micro_batches: int, in_flight: tuple[int, ...] | None) -> ChainPartition:
    """One layer a stage, every link as fast as its fastest resource; with ``in_flight`` the warm-up bound counts."""
    stages, replicas = pipeline.stages, pipeline.replicas
    many, nothing = len(stages), np.zeros(len(stages), np.int64)
    tied = {s for ends in pipeline.tied for s in ends}

    def row(values) -> np.ndarray:
        numbers = np.array(values, np.int64)
        return np.tile(numbers, (len(numbers), 1))

    return ChainPartition(
        forward=row([stage.forward for stage in stages]),
        backward=row([stage.backward for stage in stages]),
        update=row([stage.update for stage in stages]),
        reduce=row([stages[s].reduce if replicas[s] > 1 and s not in tied else 0 for s in range(many)]),
        ties=tuple(joint_sums(pipeline)),
        send=row([min(way.occupancy for way in ways) for ways in pipeline.transfers]).reshape(many - 1, many - 1),
        send_back=row([min(way.occupancy for way in ways) for ways in pipeline.returns]).reshape(many - 1, many - 1),
        latency=np.array(
            [min(way.latency for way in (*a, *b)) for a, b in zip(pipeline.transfers, pipeline.returns, strict=True)],
            np.int64,
        ),
        in_flight=nothing if in_flight is None else np.array(in_flight),
        limit=nothing,
        micro_batches=micro_batches,
        overlap=pipeline.overlap.value,
        counts=np.array([-(-micro_batches // r) for r in replicas]),
        link_counts=np.array([-(-micro_batches // lcm(*pair)) for pair in pairwise(replicas)], np.int64),
        alternating=in_flight is not None,
        resources=tuple(shared_resources(pipeline, micro_batches)),
    )


def with_tied_ends(pipeline: Pipeline, seed: int) -> Pipeline:
    """The pipeline, half of the time with weights that its first and last stage share."""
    many = len(pipeline.stages)
    return replace(pipeline, tied=((0, many - 1),)) if many > 1 and seed % 2 else pipeline


def joint_sums(pipeline: Pipeline) -> Iterator[Tie]:
    """All that two tied stages sum, as if it were the weights that they share."""
    for ends in pipeline.tied:
        nothing = (0,) * len(pipeline.stages)
        home, copy = (pipeline.stages[s].reduce for s in ends)
        yield Tie(ends, nothing, nothing, (*nothing[1:], copy), (home, *nothing[1:]))


def shared_resources(pipeline: Pipeline, micro_batches: int) -> Iterator[LinkResource]:
    """Busy time of each resource by each boundary, and by each two neighbouring ones, in one direction."""
    for back, boundaries in enumerate((pipeline.transfers, pipeline.returns)):
        loads = []
        for ways in boundaries:
            every = [ways[m % len(ways)] for m in range(micro_batches)]
            names = {name for way in every for name in way.resources}
            loads.append({name: sum(way.occupancy for way in every if name in way.resources) for name in names})
        for s, load in enumerate(loads):
            for name, time in load.items():
                busy = np.full(len(loads), time)
                yield LinkResource(s, busy, back=bool(back))
                if s + 1 < len(loads) and name in loads[s + 1] and pipeline.overlap is not Overlap.STREAM:
                    yield LinkResource(s, busy, np.full(len(loads), loads[s + 1][name]), bool(back))


def check(schedule: Schedule, pipeline: Pipeline, micro_batches: int, in_flight: tuple[int, ...] | None) -> None:
    """Compare the bounds of the only partition with the simulated step, and with the period of a long run."""
    schedule = with_reductions(schedule, pipeline.tied)
    problem = as_partition(pipeline, micro_batches, in_flight)
    only = tuple(range(problem.layers + 1))
    assert problem.evaluate(only) <= simulate(schedule, pipeline).makespan
    assert replace(problem, objective="period").evaluate(only) <= period(schedule, pipeline)


@given(widths, st.integers(1, 12), st.sampled_from(sorted(FAMILIES)), st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_no_family_beats_the_bound(replicas, micro_batches, name, seed):
    """The bounds hold for all families and links, and the warm-up bound for their in-flight counts on one lane."""
    family = FAMILIES[name]
    pipeline = random_pipeline(Random(seed), stage_by_stage(replicas), sum(replicas), 0, False)
    pipeline = with_tied_ends(pipeline, seed)
    assume(not (family.two_lanes and pipeline.overlap is Overlap.NONE))
    counts = None if family.two_lanes else family.in_flight(replicas, micro_batches)
    check(family.write(replicas, micro_batches), pipeline, micro_batches, counts)


@given(widths, st.integers(1, 12), st.lists(st.integers(1, 6), min_size=4, max_size=4), st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_no_short_warm_up_beats_the_bound(replicas, micro_batches, counts, seed):
    """Any in-flight counts that do not deadlock satisfy the warm-up bound."""
    in_flight = tuple(min(k, -(-micro_batches // r)) for k, r in zip(counts, replicas, strict=False))
    assume(first_deadlock(replicas, in_flight) is None)
    pipeline = random_pipeline(Random(seed), stage_by_stage(replicas), sum(replicas), 0, False)
    pipeline = with_tied_ends(pipeline, seed)
    check(one_forward_one_backward(replicas, micro_batches, in_flight), pipeline, micro_batches, in_flight)
