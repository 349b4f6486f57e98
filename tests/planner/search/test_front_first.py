"""Plans whose sums run front layers first: their period step by step, what may be lost, what is said and refused."""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from helpers.instances import equal_devices, model_of
from helpers.quick import QUICK
from pipeplan import Plan
from pipeplan.analysis.explain import explain_plan
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.model import Model
from pipeplan.costs.front_first import StageSums
from pipeplan.search.result import Result
from pipeplan.simulate.claims import validate_claims
from pipeplan.solve import solve

FRONT = {"objective": "period", "optimizer": "sgd", "front_first": True, "workers": 1, "time_limit": 10}


def long_end() -> Model:
    """Four equal layers of which the last has nearly all parameters."""
    parameters = [50_000, 50_000, 50_000, 800_000]
    return model_of([200_000] * 4, parameters=parameters, update=[20_000] * 4, sizes=(1, 2, 4))


@lru_cache
def answer(speed: int, **options: object) -> Result:
    """The best plan of one stage on four devices, whose links carry so many bytes per second."""
    cluster = Cluster.uniform(4, DeviceKind("unit"), Link(speed, 500))
    return solve(long_end(), cluster, 8, depths=1, replicas=4, **FRONT | options)  # type: ignore[arg-type]


def period_of(plan: Plan, model: Model, steps: int = 6) -> int:
    """Nanoseconds from step to step of a plan of one stage, layer by layer and send by send, with its own times."""
    (own,), size = plan.priority, plan.micro_batch
    (costs,) = [each.costs for each in model.profiles if each.micro_batch == size]
    many, names = plan.micro_batches // plan.stages[0].replicas, model.names
    unit = ""  # of layers ahead of all units, which wait for nothing
    units = {name: (unit := name if name in own.chunks else unit) for name in names}
    summed = dict.fromkeys(own.chunks, 0)
    clock, begins = 0, []
    for _ in range(steps):
        begins.append(clock)
        for name, cost in zip(names, costs, strict=True):  # the first forward, with updates
            clock = max(clock, summed.get(units[name], 0)) + cost.update + cost.forward
        clock += (many - 1) * sum(cost.forward + cost.backward for cost in costs)
        ready = {}
        for name, cost in reversed([*zip(names, costs, strict=True)]):
            clock += cost.backward
            ready[units[name]] = clock
        link = 0
        for send in own.sends:
            link = max(link, ready[send.layer]) + send.time
            summed[send.layer] = link
    return begins[-1] - begins[-2]


def test_a_period_is_what_steps_take_one_by_one() -> None:
    """Of random models at random speeds, with losses and without; and no less than without chunks."""
    random, waited = Random("steps"), 0
    for _ in range(4 if QUICK else 150):
        n = random.randint(2, 7)
        model = model_of(
            [random.randint(1, 5000) for _ in range(n)],
            parameters=[random.choice([0, 8, random.randint(1, 10**6)]) for _ in range(n - 1)] + [4096],
            update=[random.randint(0, 200) for _ in range(n)],
            sizes=(1, 2),
        )
        replicas = random.choice([2, 3])
        link = Link(random.choice([10**8, 10**9, 10**10]) * 8, random.choice([0, 100, 2000]))
        cluster = equal_devices(replicas, link=link)
        asked = {"depths": 1, "replicas": replicas, "loss_budget": random.choice([0, 0, 0.02, 0.3])}
        result = solve(model, cluster, 2 * replicas, **FRONT | asked)  # type: ignore[arg-type]
        assert result.front_first is not None
        plan = result.front_first.plan
        assert plan is not None and plan.bound == 0
        assert plan.value == period_of(plan, model)
        validate_claims(plan)
        lost = {name: share for own in plan.priority for name, share in own.lost}
        assert bool(plan.priority[0].prices) <= (plan.priority[0].exposed > 0)
        assert result.front_first.ideal <= plan.value
        assert all(0 < share <= 2 * asked["loss_budget"] for share in lost.values())  # type: ignore[operator]
        waited += plan.priority[0].exposed > 0
    assert waited


SLOW = 3 * 10**8
"""Bytes per second at which the last layer's sum is longer than the passes that hide it."""


def test_what_front_layers_overtake_gains_and_is_saved(tmp_path: Path) -> None:
    """The last layer's long sum is ready first and needed last: the others overtake it, and steps wait for it less."""
    result = answer(SLOW, zero=0)
    front = result.front_first
    assert front is not None and front.plan is not None and front.plan.value < 0.9 * result.value
    assert result.fastest is front.plan
    assert front.plan.priority[0].binding == ("l3",)
    assert front.plan.value == period_of(front.plan, long_end())
    assert [name for name, _ in front.plan.priority[0].prices][-1] == "l3"
    assert "a MB more of a layer costs a step:" in " ".join(str(result).split())
    found = result.as_json()["front_first"]
    assert found["binding"] == [["l3"]] and found["time_s"] == front.plan.value / 1e9  # type: ignore[index, call-overload]
    front.plan.save(tmp_path / "plan.json")
    text = str(explain_plan(Plan.load(tmp_path / "plan.json")))
    assert "sums front layers first:" in text and "l3 waits longest; a MB more of a layer costs a step: l0" in text


def test_where_all_is_hidden_nothing_is_lost() -> None:
    """On a fast link no step waits notably, and a budget changes nothing; both texts say so."""
    front = answer(10**12, loss_budget=0.1).front_first
    assert front is not None and front.plan is not None
    assert not front.longest.prices and not front.plan.priority[0].lost
    assert front.plan.priority[0].exposed < front.plan.value / 1000
    assert "so nothing may be lost" in front.line(front.plan.value)
    assert "so nothing may be lost" in str(explain_plan(front.plan))


def test_a_budget_shortens_what_is_waited_for() -> None:
    """By half of what is lost: the half of a sum in which gradients are added."""
    none, some = (answer(SLOW, loss_budget=budget, zero=0).front_first for budget in (0.0, 0.1))
    assert none is not None and some is not None and none.plan is not None and some.plan is not None
    ideal = 0.1 * 950_000 / 2 * 1.5 / SLOW * 1e9
    assert 0.85 * ideal < none.plan.value - some.plan.value <= ideal  # chunks that run keep some of it
    assert "gradients may be lost" in " ".join(str(answer(SLOW, loss_budget=0.1, zero=0)).split())


def test_stages_of_a_pipeline_have_orders_of_their_own() -> None:
    """Two stages of two replicas: a plan whose claims hold, and which is no faster than without chunks."""
    cluster = Cluster.uniform(4, DeviceKind("unit"), Link(SLOW, 500))
    shape = {"depths": 2, "replicas": 2, "zero": 0}
    front = solve(long_end(), cluster, 8, **FRONT | shape).front_first  # type: ignore[arg-type]
    assert front is not None and front.plan is not None
    validate_claims(front.plan)
    assert len(front.plan.priority) == 2 and front.ideal <= front.plan.value
    for own, stage in zip(front.plan.priority, front.plan.stages, strict=True):
        assert sum(own.units(stage.layers)) == len(stage.layers)
        assert {send.layer for send in own.sends} <= {*stage.layers}


def test_neighbours_are_joined_up_to_so_many_bytes() -> None:
    """From the last layer on; a unit is ready and needed as its first layer is; larger layers stay alone."""
    rows = (np.array(row) for row in ([5, 3, 9, 2, 2], [50, 30, 90, 20, 20], [0, 1, 2, 3, 4], [0, 10, 20, 30, 40]))
    sums = StageSums(("a", "b", "c", "d", "e"), *rows, base=7, backward=5, forward=50)
    joined = sums.joined(8)
    assert (joined.names, joined.sizes.tolist()) == (("a", "c", "d"), [8, 9, 4])
    assert (joined.times.tolist(), joined.ready.tolist()) == ([80, 90, 40], [0, 2, 3])
    assert sums.joined(1).names == sums.names and sums.joined(21).names == ("a",)
    assert replace(sums, lost=(Fraction(1, 2),) * 5).sums(sums.counts(9)).times.tolist() == [45, 30, 75, 22, 22]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"loss_budget": 0.5}, "below 0.5"),
        ({"loss_budget": -0.1}, "at least 0"),
        ({"loss_budget": "much"}, "no share of gradients"),
        ({"loss_budget": 0.1, "zero": 3}, "parameters, which must all arrive; ask for level 0"),
        ({"zero": 1}, "ask for level 0"),
        ({"objective": "step"}, "ask for the objective 'period'"),
        ({"staleness": 1}, "drop one"),
        ({"overlap_reduction": False}, "nothing run beside sums"),
    ],
)
def test_what_excludes_it_is_refused(options: dict[str, object], why: str) -> None:
    """With the reason, and what works."""
    with pytest.raises(InputError, match=why):
        answer(10**9, **options)
    with pytest.raises(InputError, match="one device sums nothing"):
        solve(long_end(), equal_devices(1), 8, **FRONT)  # type: ignore[arg-type]


def test_plans_that_cannot_have_it_are_said_to_be_none() -> None:
    """Without replicas, or on links beside which nothing runs; the answer stands."""
    slow = Cluster.uniform(2, DeviceKind("unit", speed_beside_collectives=0), Link(10**9, 5))
    for cluster, options in ((slow, {"replicas": 2, "depths": 1}), (equal_devices(2), {"replicas": 1})):
        result = solve(long_end(), cluster, 8, **FRONT | options)  # type: ignore[arg-type]
        assert result.front_first is not None and result.front_first.plan is None
        assert "none of the plans found can have them" in " ".join(str(result).split())
        assert result.fastest is result.plan
