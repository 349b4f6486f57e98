"""The scheduling instance of a pipeline never exceeds the simulator, and equals it where it is exact."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.found_pipelines import as_simulated, random_orders, random_pipeline
from helpers.quick import examples
from pipeplan.core.cluster import Overlap
from pipeplan.core.validate import validate_memory, validate_schedule
from pipeplan.search.scheduling import as_orders, as_schedule, schedule_problem
from pipeplan.search.scheduling.replica_pipelines import replica_pipelines
from pipeplan.simulate import makespan, simulate
from pipeplan_formulations.schedule import evaluate, feasible
from pipeplan_formulations.schedule.objective import peaks

seeds = st.integers(0, 10**9)


def _draw(seed: int, **wanted: bool) -> tuple:
    draw = Random(seed)
    pipeline = random_pipeline(seed, **wanted)
    micro_batches = draw.randint(1, 7)
    split = [draw.random() < 0.6 for _ in pipeline.stages]
    lanes = {"two_lanes": pipeline.overlap is not Overlap.NONE and draw.random() < 0.4}
    return pipeline, micro_batches, split, lanes


@examples(100, 3000)
@given(seeds)
def test_an_instance_is_a_relaxation(seed: int) -> None:
    """For any orders, on one lane or two, and tensors on links as the simulator serves them, the instance gives no more
    time than the simulator, and the lists are complete and without deadlock."""
    pipeline, micro_batches, split, lanes = _draw(seed)
    problem = schedule_problem(pipeline, micro_batches, split, **lanes)
    orders = random_orders(seed, problem)
    schedule = as_schedule(orders, pipeline, micro_batches, **lanes)
    validate_schedule(schedule, len(pipeline.stages), micro_batches, pipeline.placement, pipeline.tied)
    simulated = as_simulated(schedule, pipeline, problem)
    assert simulated is not None
    assert simulated[: problem.devices] == orders
    value = evaluate(problem, simulated)
    assert value is not None
    assert value <= makespan(schedule, pipeline)
    other = replace(schedule, two_lanes=not schedule.two_lanes)
    assert as_orders(other, pipeline, problem) is None


@settings(max_examples=120, deadline=None)
@given(seeds)
def test_an_instance_is_exact_without_replicas_and_ties(seed: int) -> None:
    """With one replica, one stage per device and no ties, instance and simulator agree under any overlap, with any
    shared links, on one lane or two."""
    pipeline, micro_batches, split, lanes = _draw(seed, plain=True)
    problem = schedule_problem(pipeline, micro_batches, split, **lanes)
    orders = random_orders(seed, problem)
    schedule = as_schedule(orders, pipeline, micro_batches, **lanes)
    assert evaluate(problem, orders) == makespan(schedule, pipeline)
    simulated = as_simulated(schedule, pipeline, problem)
    assert simulated is not None
    assert evaluate(problem, simulated) == makespan(schedule, pipeline)


@settings(max_examples=80, deadline=None)
@given(seeds)
def test_an_instance_holds_what_the_simulator_holds(seed: int) -> None:
    """The peaks of orders are those of simulator and validator; with unequal workspaces, bounds on them."""
    pipeline, micro_batches, split, lanes = _draw(seed)
    least, most = (schedule_problem(pipeline, micro_batches, split, safe=safe, **lanes) for safe in (False, True))
    orders = random_orders(seed, least)
    schedule = as_schedule(orders, pipeline, micro_batches, **lanes)
    held, seen = validate_memory(schedule, pipeline), simulate(schedule, pipeline).peaks
    for column, devices in enumerate(replica_pipelines(pipeline).groups):
        assert held[devices[0]] >= seen[devices[0]]
        assert held[devices[0]] == seen[devices[0]] or lanes["two_lanes"]
        assert peaks(least, orders)[column] <= held[devices[0]] <= peaks(most, orders)[column]
        if least.base[column] == most.base[column]:
            assert peaks(least, orders)[column] == held[devices[0]]


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 12))
def test_limits_of_an_instance_are_those_of_the_pipeline(seed: int, more: int) -> None:
    """Orders that fit every device fit the instance, and those that fit the safe instance fit every device."""
    pipeline, micro_batches, split, lanes = _draw(seed)
    least = schedule_problem(pipeline, micro_batches, split, **lanes)
    tight = replace(pipeline, limits=tuple(pipeline.runtime[0] + 5 + more for _ in pipeline.limits))
    loose, safe = (schedule_problem(tight, micro_batches, split, safe=way, **lanes) for way in (False, True))
    orders = random_orders(seed, least)
    held = validate_memory(as_schedule(orders, pipeline, micro_batches, **lanes), pipeline)
    fits = all(peak <= limit for peak, limit in zip(held, tight.limits, strict=True))
    assert feasible(safe, orders) <= fits <= feasible(loose, orders)
