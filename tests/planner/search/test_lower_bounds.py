"""Cheap lower bounds where they are met exactly: a bound that is one nanosecond too high excludes the best plan."""

from itertools import combinations
from random import Random

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import Prices, price
from pipeplan.schedules import FAMILIES
from pipeplan.search.evaluate import evaluate
from pipeplan.search.space.lower_bounds import LowerBounds
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
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


def test_all_plans_are_bounded_before_any_folded_layers_are_priced() -> None:
    """Several stages of a device have the work of one, and of thousands of layers each way to fold them takes time."""
    spaces = Spaces(model_of([3, 1, 4, 1, 5, 9, 2, 6]), equal_devices(2), Job(8, chunks=(1, 2, 4)))
    least, folded = spaces.least, [space for own in spaces.folded.values() for space in own]
    assert folded
    assert not any(space._lower_bounds for space in folded)
    every = (space.lower_bounds(size).evenly_shared(space.cluster) for space in spaces for size in space.sizes)
    assert least == min(every)


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


def drawn_space(random: Random) -> Space:
    """Three or four layers, on up to four devices of two kinds, in micro-batches of one, two or four samples."""
    kinds = {name: DeviceKind(name, timed_as="unit", speed=random.choice((0.5, 1.0))) for name in ("one", "other")}
    names = [random.choice(list(kinds)) for _ in range(random.randint(1, 4))]
    cluster = Cluster("two kinds", {name: kinds[name] for name in names}, (Node(tuple(names), Link()),))
    times = [random.choice((1, 2, 40)) for _ in range(random.randint(3, 4))]
    model = model_of(times, times, sizes=(1, 2, 4))
    return Space(model, cluster, Job(random.choice((4, 8)), objective=random.choice(("step", "bottleneck"))))


def test_no_device_groups_are_bounded_above_a_plan_on_them() -> None:
    """Step or bottleneck, of micro-batches of several samples, on replicas, of whatever kinds: and some are met."""
    seen = close = 0
    for seed in range(30):
        random = Random(f"groups {seed}")
        space = drawn_space(random)
        size = random.choice(space.sizes)
        every = list(space.device_groups(size))
        for groups, bound in random.sample(every, min(len(every), 4)):
            layers = len(space.model.layers)
            edges = (0, *sorted(random.sample(range(1, layers), len(groups) - 1)), layers)
            for candidate in space.candidates(groups, size):
                value = evaluate(space.cluster, candidate, edges).value
                assert bound <= value, (seed, candidate.label)
                seen, close = seen + 1, close + (value - bound <= 1)
    assert seen > 100 and close
