"""Cheap lower bounds where they are met exactly: a bound that is one nanosecond too high excludes the best plan."""

from itertools import combinations
from random import Random

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import Prices, price
from pipeplan.schedules import FAMILIES
from pipeplan.search.space.lower_bounds import LowerBounds
from pipeplan.simulate import makespan

TIMES = [3, 1_000_003, 7]


def bounds(model: Model, devices: int, job: Job) -> LowerBounds:
    """Those of micro-batches of one sample."""
    return LowerBounds(Prices(model, equal_devices(devices), job), 1)


@pytest.mark.parametrize("scale", [1, 1_000, 10**9])
@pytest.mark.parametrize("objective", [Objective.STEP, Objective.BOTTLENECK])
def test_shared_work_is_met_by_replicas_that_share_it(scale: int, objective: Objective) -> None:
    """Four replicas of one stage with free links take a quarter of all work, and the bound is at most that."""
    model = model_of([scale * time for time in TIMES])
    work = 3 * scale * sum(TIMES)
    found = bounds(model, 4, Job(8, objective=objective)).evenly_shared(equal_devices(4))
    exact = 2 * work if objective is Objective.STEP else work // 4
    assert 0.999 * exact - 1 <= found <= exact


@pytest.mark.parametrize("scale", [1, 1_000, 10**9])
def test_one_stage_is_bounded_by_its_work(scale: int) -> None:
    """A single device runs all micro-batches one after the other, and no bound says more."""
    model = model_of([scale * time for time in TIMES])
    of = bounds(model, 1, Job(5))
    exact = 5 * 3 * scale * sum(TIMES)
    for found in (of.of_stages([("unit", 1)]), of.of_equal_stages({"unit": 1}, 1), of.of_any(equal_devices(1))):
        assert 0.999 * exact - 1 <= found <= exact


@pytest.mark.parametrize("seed", range(6))
def test_no_stages_are_bounded_above_what_is_simulated(seed: int) -> None:
    """One layer may have nearly all work: its stage never waits with more in flight, and is the whole step."""
    random = Random(seed)
    times, count = [random.choice((1, 2, 40)) for _ in range(4)], random.randint(2, 6)
    model, job = model_of([40, *times[1:]], [40, *times[1:]]), Job(count)
    for cuts in (cuts for k in (1, 2, 3) for cuts in combinations((1, 2, 3), k)):
        depth, cluster = len(cuts) + 1, equal_devices(len(cuts) + 1)
        pipeline = assemble(price(model, cluster, cluster.devices, 1, job), cluster, (0, *cuts, 4))
        bound = bounds(model, depth, job).of_stages([("unit", 1)] * depth)
        for name in ("1f1b-so", "gpipe"):
            assert bound <= makespan(FAMILIES[name].write((1,) * depth, count), pipeline), (cuts, name)
