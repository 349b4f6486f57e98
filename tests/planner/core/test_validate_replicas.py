"""Errors of the validator for stages with replicas."""

from collections.abc import Callable
from dataclasses import replace
from math import gcd
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.replicated import MIB, replicated_answer
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import PlanError
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.core.validate import validate_memory, validate_plan, validate_schedule
from pipeplan.core.validate.lanes import like_lanes
from pipeplan.core.validate.plan import _divided
from pipeplan.core.validate.schedule import _violations
from pipeplan.costs.assembly import own_ranks
from pipeplan.schedules.alternate import one_forward_one_backward

TWO_AND_ONE = ((0, 1), (2,))
GOOD = ("0F0 0F2 0B0 0B2 0R 0U", "0F1 0B1 0R 0U", "1F0 1B0 1F1 1B1 1F2 1B2 1U")


def violations(*lists: str, micro_batches: int = 3) -> list[str]:
    """The lines of the error, without its first; none if the lists pass."""
    schedule = Schedule.from_text("by hand", lists)
    try:
        validate_schedule(schedule, 2, micro_batches, TWO_AND_ONE)
    except PlanError as error:
        return [text.strip() for text in str(error).splitlines()[1:]]
    return []


def change(device: int, old: str, new: str) -> tuple[str, ...]:
    """The good lists with one word of one device replaced."""
    assert old in GOOD[device]
    return tuple(text.replace(old, new) if d == device else text for d, text in enumerate(GOOD))


def test_replicas_that_share_a_stage_pass() -> None:
    """Two replicas with their own micro-batches, a reduction and an update each; without a placement they stray."""
    assert violations(*GOOD) == []
    with pytest.raises(PlanError, match="owns stage 0; move it there"):
        validate_schedule(Schedule.from_text("by hand", GOOD), 2, 3)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (change(1, "0F1 0B1", ""), ["0F1 is missing", "0B1 is missing (or 0I1 and 0W1)"]),
        (change(1, "0R", ""), ["stage 0 has 2 replicas and no reduction on device 1; add 0R"]),
        (change(0, "0U", ""), ["stage 0 has no update on device 0, where it has a replica; add 0U"]),
        (change(0, "0R", "0R 0R"), ["0R is there 2 times on device 0; keep one"]),
        (change(2, "1U", "1U 0R"), ["0R stands on device 2, but stage 0 is on device 0 and 1; drop it"]),
        (
            change(0, "0R", "1U"),
            [
                "1U stands on device 0, but stage 1 is on device 2; drop it",
                "stage 0 has 2 replicas and no reduction on device 0; add 0R",
            ],
        ),
        (change(1, "0R 0U", "0U 0R"), ["device 0 waits at 0R for 0R on device 1", "device 1 waits at 0U for 0R"]),
        (change(0, "0B2 0R", "0R 0B2"), ["device 0 waits at 0R for 1 more backward actions of stage 0"]),
    ],
)
def test_faults_of_replicas_are_named(lists: tuple[str, ...], says: list[str]) -> None:
    """Actions that are missing, doubled, in the wrong list or in the wrong order are named with their device."""
    found = violations(*lists)
    for text in says:
        assert any(text in line for line in found), found


def test_a_micro_batch_belongs_to_one_replica() -> None:
    """Micro-batch m is replica m mod r's, and nobody else may run it."""
    found = violations("0F0 0F1 0B0 0B1 0R 0U", "0F2 0B2 0R 0U", GOOD[2])
    assert found == [
        "0F1 stands on device 0, but device 1 owns its replica of stage 0; move it there",
        "0B1 stands on device 0, but device 1 owns its replica of stage 0; move it there",
        "0F2 stands on device 1, but device 0 owns its replica of stage 0; move it there",
        "0B2 stands on device 1, but device 0 owns its replica of stage 0; move it there",
    ]


def test_a_reduction_waits_for_all_replicas() -> None:
    """Two stages whose replicas reduce in opposite orders wait for each other for ever."""
    lists = ("0F0 1F0 1B0 0B0 0R 1R 0U 1U", "0F1 1F1 1B1 0B1 1R 0R 0U 1U")
    with pytest.raises(PlanError) as error:
        validate_schedule(Schedule.from_text("by hand", lists), 2, 2, ((0, 1), (0, 1)))
    assert "device 0 waits at 0R for 0R on device 1" in str(error.value)
    assert "device 1 waits at 1R for 1R on device 0" in str(error.value)


def test_an_idle_replica_reduces_with_the_others() -> None:
    """More replicas than micro-batches: who has nothing to compute still takes part in the sum."""
    assert violations("0F0 0B0 0R 0U", "0R 0U", "1F0 1B0 1U", micro_batches=1) == []
    assert violations("0F0 0B0 0R 0U", "", "1F0 1B0 1U", micro_batches=1) == [
        "stage 0 has no update on device 1, where it has a replica; add 0U",
        "stage 0 has 2 replicas and no reduction on device 1; add 0R",
    ]


@pytest.fixture(scope="module")
def answer() -> tuple[Plan, Model, Cluster]:
    """Stages of 3, 1 and 2 replicas."""
    return replicated_answer()


def test_a_sound_plan_with_replicas_passes(answer: tuple[Plan, Model, Cluster]) -> None:
    """With devices in another order than ranks, recomputation and a replica that has one micro-batch less."""
    validate_plan(*answer)
    plan = answer[0]
    runtime, held, workspace = MIB, 2 * MIB, MIB
    assert validate_memory(plan.schedule, plan.pipeline)[:3] == (runtime + held + workspace,) * 3


def spoil(plan: Plan, number: int = 0, **stage: Any) -> Plan:
    """The plan with fields of one stage replaced."""
    return replace(
        plan, stages=tuple(replace(each, **stage) if i == number else each for i, each in enumerate(plan.stages))
    )


def place(plan: Plan, *placement: tuple[int, ...]) -> Plan:
    """The plan with another placement."""
    return replace(plan, pipeline=replace(plan.pipeline, placement=placement))


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (lambda p: spoil(p, devices=(2, 0)), "its ranks run on devices [0, 1, 2, 3, 4, 5], its stages on [0, 2, 3"),
        (lambda p: spoil(p, devices=(2, 0, 0)), "uses device 0 2 times"),
        (lambda p: spoil(p, devices=(0, 1, 2)), "timed for ranks 0, 1, 2 on devices 2, 0, 1, but says that it is on"),
        (lambda p: spoil(p, 2, devices=(5,)), "stage 2 has 1 replicas, its times are for ranks 4, 5 of 6"),
        (lambda p: place(p, (0, 1, 9), (3,), (4, 5)), "3 replicas, its times are for ranks 0, 1, 9 of 6"),
        (lambda p: place(p, (1, 0, 2), (3,), (4, 5)), "timed for ranks 1, 0, 2 on devices 0, 2, 1"),
        (
            lambda p: spoil(replace(p, ranks=(2, 0, 4, 3, 5, 1)), devices=(2, 0, 4)),
            "stage 0 has replicas on slow and unit, but its times and bytes hold for one kind",
        ),
        (lambda p: spoil(p, recompute=("l2",)), "stage 0 recomputes 'l2', which is not one of its layers"),
        (lambda p: spoil(p, recompute=("l1", "l1")), "stage 0 recomputes 'l1' 2 times"),
        (lambda p: spoil(p, in_flight=1), "stage 0 says that it holds 1 micro-batches; its list makes it hold 2"),
        (
            lambda p: replace(p, pipeline=replace(p.pipeline, runtime=(MIB, MIB, 2 * MIB, MIB, MIB, MIB))),
            "stage 0 counts 4.00 MiB; with 2 micro-batches in flight it needs 5.00 MiB",
        ),
        (
            lambda p: replace(p, schedule=replace(p.schedule, two_lanes=True)),  # both lanes have a workspace
            "stage 0 counts 4.00 MiB; with 2 micro-batches in flight it needs 5.00 MiB",
        ),
        (
            lambda p: replace(p, pipeline=replace(p.pipeline, limits=(2**40, MIB, 2**40, 2**40, 2**40, 2**40))),
            "device 1 holds 4.00 MiB of 1.00 MiB",
        ),
        (
            lambda p: replace(p, schedule=Schedule("x", tuple(order[:-2] for order in p.schedule.orders))),
            "stage 0 has 3 replicas and no reduction on device 0",
        ),
    ],
)
def test_a_spoilt_plan_with_replicas_is_refused(
    answer: tuple[Plan, Model, Cluster], spoilt: Callable[[Plan], Plan], says: str
) -> None:
    """Each broken rule is named with its numbers."""
    plan, model, cluster = answer
    with pytest.raises(PlanError) as error:
        validate_plan(spoilt(plan), model, cluster)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("layers", "divided"), [("ab bc", "b"), ("b bc", "b"), ("ab c b", ""), ("ab cb", ""), ("ba bc", "")]
)
def test_parts_of_a_layer_lie_on_neighbouring_stages(layers: str, divided: str) -> None:
    """They are the last layer of one and the first of the next."""
    stages = [SimpleNamespace(layers=tuple(own), shares=(("b", 0.5),) * ("b" in own)) for own in layers.split()]
    assert _divided(SimpleNamespace(stages=stages)) == set(divided)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(60))
def test_like_lanes_pass_where_all_lists_do(seed: int) -> None:
    """One lane is checked for all: lists with a fault in one or in every lane are refused as if each was read."""
    random = Random(seed)
    replicas = random.choice([(2, 2), (4, 2), (3, 3), (2, 4, 2)])
    many = random.randint(4, 12)
    written = one_forward_one_backward(replicas, many, [2 * max(replicas)] * len(replicas))
    placement = [*map(tuple, own_ranks(replicas))]
    orders = [list(order) for order in written.orders]
    assert like_lanes(written, placement) == gcd(*replicas, many)
    stage, at, fault = random.randrange(len(replicas)), random.randrange(3), random.choice(["drop", "swap", "twice"])
    own = placement[stage]
    for rank in own[:: len(own) // random.choice([1, len(own)])]:
        if fault == "drop":
            del orders[rank][-1 - at]
        elif fault == "swap":
            orders[rank][at], orders[rank][-2 - at] = orders[rank][-2 - at], orders[rank][at]
        else:
            orders[rank].append(orders[rank][at])
    schedule = replace(written, orders=tuple(map(tuple, orders)))
    whole = [*_violations(schedule, len(replicas), many, placement, ())]
    if whole:
        with pytest.raises(PlanError, match=f"breaks {'1 rule' if len(whole) == 1 else f'{len(whole)} rules'}"):
            validate_schedule(schedule, len(replicas), many, placement)
    else:
        validate_schedule(schedule, len(replicas), many, placement)
