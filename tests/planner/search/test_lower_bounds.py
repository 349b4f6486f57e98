"""Cheap lower bounds where they are met exactly: a bound that is one nanosecond too high excludes the best plan."""

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.costs.pricing import Prices
from pipeplan.search.space.lower_bounds import LowerBounds

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
