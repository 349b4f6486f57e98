"""Searched schedules are valid, never worse than a family's, and never below the proven bound."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import exhaustive_orders
from helpers.found_pipelines import as_simulated, family_pipeline, random_orders, random_pipeline
from helpers.quick import examples
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate import validate_memory, validate_schedule
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.search.scheduling import (
    ScheduleResult,
    as_schedule,
    find_schedule,
    relaxed_problem,
    schedule_lower_bound,
    schedule_problem,
)
from pipeplan.search.scheduling.link_bound import link_bound
from pipeplan.simulate import makespan
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.schedule import evaluate

seeds = st.integers(0, 10**9)


def _fits(schedule: Schedule, pipeline: Pipeline) -> bool:
    try:
        validate_memory(schedule, pipeline)
    except PlanError:
        return False
    return True


def _families(pipeline: Pipeline, micro_batches: int) -> Iterator[Schedule]:
    """Schedules of all families that suit the pipeline, whether they fit or not, in the families' device numbers."""
    devices, stages = pipeline.devices, len(pipeline.stages)
    if devices == stages * pipeline.replicas[0]:
        for family in FAMILIES.values():
            if not family.two_lanes or pipeline.overlap is Overlap.STREAM:
                yield family.write(pipeline.replicas, micro_batches)
    chunks = stages // devices
    for placed in PLACED.values():
        possible = chunks and placed.chunks in (None, chunks) and not (placed.even and devices % 2)
        if possible and placed.placement(devices, chunks) == pipeline.placement:
            yield placed.write(devices, micro_batches, chunks)


def _check(found: ScheduleResult, pipeline: Pipeline, micro_batches: int) -> None:
    """Check that a schedule is valid, fits in memory, has its simulated time, and is not below the bound."""
    if found.schedule is None:
        assert found.status in (Status.INFEASIBLE, Status.UNKNOWN)
        return
    validate_schedule(found.schedule, len(pipeline.stages), micro_batches, pipeline.placement, pipeline.tied)
    validate_memory(found.schedule, pipeline)
    assert found.value == makespan(found.schedule, pipeline) >= found.bound


@examples(25, 300)
@given(seeds)
def test_what_is_found_is_never_worse_than_a_family(seed: int) -> None:
    """On up to 16 devices: the schedule is valid, not slower than a fitting family, not below the bound."""
    pipeline, micro_batches = family_pipeline(seed)
    found = find_schedule(pipeline, micro_batches, Limits(time=0.2, workers=1, seed=seed % 100))
    _check(found, pipeline, micro_batches)
    for schedule in _families(pipeline, micro_batches):
        if _fits(schedule, pipeline):
            value = makespan(schedule, pipeline)
            assert found.value is not None
            assert found.bound <= found.value <= value, schedule.family


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_no_schedule_is_below_the_lower_bound(seed: int) -> None:
    """Any order, on one lane or two, each backward joined or split by itself: a schedule that fits also fits the
    relaxed instance, and takes no less time."""
    draw = Random(seed)
    pipeline, micro_batches = random_pipeline(seed), draw.randint(1, 6)
    lanes = {"two_lanes": pipeline.overlap is not Overlap.NONE and draw.random() < 0.4}
    free = schedule_problem(pipeline, micro_batches, **lanes)
    schedule = as_schedule(random_orders(seed, free), pipeline, micro_batches, **lanes)
    schedule = replace(schedule, orders=tuple(_some_joined(draw, order) for order in schedule.orders))
    validate_schedule(schedule, len(pipeline.stages), micro_batches, pipeline.placement, pipeline.tied)
    peaks = validate_memory(schedule, pipeline)
    rows = [{peaks[device] for device in homes} for homes in pipeline.placement]
    if all(len(row) == 1 for row in rows):  # rows of fewer micro-batches hold less
        pipeline = replace(pipeline, limits=peaks)
    problem = relaxed_problem(pipeline, micro_batches, **lanes)
    orders = as_simulated(schedule, pipeline, problem)
    assert orders is not None
    value = evaluate(problem, orders)
    assert value is not None
    assert schedule_lower_bound(problem) <= makespan(schedule, pipeline)
    assert link_bound(pipeline, micro_batches, **lanes) <= makespan(schedule, pipeline)
    assert value <= makespan(schedule, pipeline)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_a_start_on_two_lanes_is_never_lost(seed: int) -> None:
    """Where tensors stream, any start on two lanes, split or with several stages per device, counts like any other."""
    pipeline = replace(random_pipeline(seed), overlap=Overlap.STREAM)
    problem = schedule_problem(pipeline, 4, two_lanes=True)
    start = as_schedule(random_orders(seed, problem), pipeline, 4, two_lanes=True)
    found = find_schedule(pipeline, 4, Limits(time=0.05, workers=1), starts=[start])
    _check(found, pipeline, 4)
    assert found.value is not None
    assert found.bound <= found.value <= makespan(start, pipeline)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_small_pipelines_are_solved(seed: int) -> None:
    """Where the instance is exact, the result is the optimum of an exhaustive search. Where tensors wait for links,
    which the simulator serves first come, first served, it is no less."""
    draw = Random(seed)
    pipeline, micro_batches = random_pipeline(seed, 3, plain=True), draw.randint(1, 3)
    most = [stage.resident + stage.workspace + draw.randint(1, micro_batches) * stage.held for stage in pipeline.stages]
    limits = tuple(most[pipeline.placement.index((d,))] + pipeline.runtime[d] for d in range(pipeline.devices))
    pipeline = replace(pipeline, limits=limits)
    split = draw.random() < 0.7
    found = find_schedule(pipeline, micro_batches, Limits(time=8, workers=1), split=split)
    _check(found, pipeline, micro_batches)
    lanes = (False, True) if pipeline.overlap is Overlap.STREAM else (False,)
    problems = [relaxed_problem(pipeline, micro_batches, split, two_lanes=two) for two in lanes]
    reports = [exhaustive_orders.solve(problem, Limits(time=20)) for problem in problems if problem.possible]
    assert all(report.status is Status.OPTIMAL for report in reports)
    least = min((report.objective for report in reports if report.objective is not None), default=found.bound)
    assert found.bound <= least
    told = [schedule_problem(pipeline, micro_batches, split, two_lanes=two) for two in lanes]
    if problems == told and reports and not any(problem.sent for problem in told):
        assert found.value == found.bound == least


def _some_joined(draw: Random, order: tuple[Action, ...]) -> tuple[Action, ...]:
    """The schedule with some weight gradients joined with their input gradients."""
    joined = {(a.stage, a.micro_batch) for a in order if a.kind is Kind.WEIGHT_GRADIENT and draw.random() < 0.4}
    return tuple(
        action._replace(kind=Kind.BACKWARD)
        if action.kind is Kind.INPUT_GRADIENT and (action.stage, action.micro_batch) in joined
        else action
        for action in order
        if action.kind is not Kind.WEIGHT_GRADIENT or (action.stage, action.micro_batch) not in joined
    )
