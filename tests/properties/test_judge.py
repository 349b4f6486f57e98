"""Random hand-written plans: what `judge` says of each of them is true."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.happening import happens
from helpers.instances import model_of
from pipeplan import Cluster, InputError, Job
from pipeplan.analysis.judge import Judgement, judge
from pipeplan.core.cluster import DeviceKind, Link, Node, Overlap
from pipeplan.core.model import Model
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces

SCHEDULES = ("gpipe", "1f1b-sno", "1f1b-so")


@dataclass(frozen=True)
class Case:
    """A question, and a plan written for it by hand."""

    model: Model
    cluster: Cluster
    job: Job
    plan: dict[str, Any]

    def judged(self, **other: Any) -> Judgement:
        """What `judge` says of it."""
        return judge(self.model, self.cluster, job=self.job, **(self.plan | other), time_limit=20, workers=1)


def drawn(seed: int) -> Case:
    """A plan of up to three stages for a chain of up to four layers, on up to six devices of two nodes."""
    draw = Random(f"judge {seed}")
    layers = draw.randint(2, 4)
    numbers = {name: [draw.randint(1, 30) for _ in range(layers)] for name in ("saved", "output", "parameters")}
    model = model_of([draw.randint(1, 40) for _ in range(layers)], **numbers, sizes=(1, 2, 4))
    memory = draw.choice([None, draw.randint(60, 400)])
    node = Node(("unit",) * draw.randint(1, 3), Link(10**9, 0))
    kind, network = DeviceKind("unit", memory=memory), Link(draw.choice([10**8, 10**10]), 3)
    cluster = Cluster("nodes", {"unit": kind}, (node,) * draw.randint(1, 2), network, draw.choice(list(Overlap)[:2]))
    plan = written(draw, layers, len(cluster.devices))
    asked: dict[str, Any] = {"optimizer": "adam"}
    asked |= draw.choice([{}, {"depths": draw.randint(1, 3)}, {"replicas": draw.randint(1, 2)}])
    asked |= draw.choice([{}, {"schedules": draw.choice(SCHEDULES)}, {"schedules": (draw.choice(SCHEDULES), "any")}])
    asked |= draw.choice([{}, {"zero": draw.randint(0, 1)}, {"recompute": draw.choice(["none", "full"])}])
    asked |= draw.choice([{}, {"micro_batches": 4}, {"no_cut_after": ("l0",)}, {"equal_replicas": True}])
    return Case(model, cluster, Job(4, **asked), plan)


def written(draw: Random, layers: int, devices: int) -> dict[str, Any]:
    """A plan without regard to whether it can be run, fits or is searched."""
    cuts = sorted(draw.sample(range(1, layers), min(draw.randint(0, 2), layers - 1)))
    stages = [b - a for a, b in pairwise([0, *cuts, layers])]
    placed = draw.random() < 0.3
    plan: dict[str, Any] = {"stages": stages, "micro_batches": draw.choice([1, 2, 4])}
    plan["schedule"] = draw.choice(list(PLACED)) if placed else draw.choice(SCHEDULES)
    plan["replicas"] = 1 if placed else [draw.randint(1, max(devices // len(stages), 1)) for _ in stages]
    return plan | {"recompute": draw.choice(["none", "full"]), "zero": draw.randint(0, 1 if placed else 3)}


def answered(seed: int, **other: Any) -> tuple[Case, Judgement] | None:
    """The case and its judgement; None if it is no plan, or the question contradicts itself."""
    try:
        case = drawn(seed)
        return case, case.judged(**other)
    except InputError:
        return None


def nodes_of(cluster: Cluster, devices: Iterator[tuple[int, ...]]) -> list[list[int]]:
    """The nodes of the devices of each stage, numbered by first appearance."""
    number: dict[int, int] = {}
    return [[number.setdefault(cluster.devices[d].node, len(number)) for d in own] for own in devices]


def lists(case: Case, found: Judgement) -> bool:
    """Whether a listing of the searched space has the plan, or one stage that holds no more."""
    plan, job = found.plan, case.job
    if len(plan.ranks) < sum(stage.replicas for stage in plan.stages):
        return False
    again, layers = sum(len(stage.recompute) for stage in plan.stages), len(case.model.layers)
    if (job.recompute == "none" and again) or (job.recompute == "full" and again < layers):
        return False
    if any(case.model.names[cut - 1] in job.no_cut_after for cut in plan.boundaries[1:-1]):
        return False
    spaces = Spaces(case.model, case.cluster, job)
    return any(has(space, case, found) for space in spaces)


def has(space: Space, case: Case, found: Judgement) -> bool:
    """Whether one space lists the plan's devices, level and schedule."""
    plan = found.plan
    replicated = any(stage.replicas > 1 for stage in plan.stages)
    if (replicated and space.job.level != plan.zero) or plan.micro_batch not in space.sizes:
        return False
    own = nodes_of(case.cluster, (stage.devices for stage in plan.stages))
    rows = (groups for groups, _ in space.device_groups(plan.micro_batch))
    named = ([tuple(device.index for device in group) for group in groups] for groups in rows)
    if not any(nodes_of(case.cluster, iter(groups)) == own for groups in named):
        return False
    widths = {stage.replicas for stage in plan.stages}
    if (space.any_order and len(widths) == 1) or plan.schedule.family in {each.name for each in space.families}:
        return True
    if plan.schedule.family not in FAMILIES or len(plan.stages) > 1:
        return False
    counts = [each.in_flight(tuple(widths), plan.micro_batches)[0] for each in space.families]
    return min(counts) <= plan.stages[0].in_flight


@pytest.mark.happens(0.3)
@given(st.integers(0, 10**9))
def test_the_reason_why_a_plan_is_not_searched_is_named_where_it_is_not(seed: int) -> None:
    """A listing of the searched space has the plan exactly where no reason is given."""
    answer = answered(seed)
    if happens(answer is not None and answer[1].result is not None):
        assert (answer[1].outside == "") is lists(*answer), (seed, answer[1].outside)


@given(st.integers(0, 10**9))
def test_a_named_option_makes_a_plan_one_of_those_searched(seed: int) -> None:
    """With the schedules that the reason names, it names them no longer."""
    answer = answered(seed)
    if answer is None or not (named := re.search(r"\(--schedules (\S+) search", answer[1].outside)):
        return
    case, found = answer
    schedules = (*(case.job.schedules or SCHEDULES), named[1])
    again = replace(case, job=replace(case.job, schedules=tuple(dict.fromkeys(schedules)))).judged()
    assert again.outside != found.outside and "schedule" not in again.outside


@pytest.mark.happens(0.1)
@given(st.integers(0, 10**9))
def test_a_searched_plan_that_fits_takes_no_less_than_the_bound(seed: int) -> None:
    """So the search is told to go on only where its gap is open; and a plan that it proved is never beaten."""
    answer = answered(seed)
    if answer is None or answer[1].result is None:
        return
    found, result = answer[1], answer[1].result
    if happens(not found.overflows and not found.outside):
        assert found.value >= result.bound
    if not result.gap:
        assert "more time" not in str(found)
    if found.value < result.value and found.overflows:
        assert "more on a device" in str(found)


@given(st.integers(0, 10**9))
def test_what_is_said_to_fit_fits(seed: int) -> None:
    """Another level of ZeRO, or recomputation, makes the same plan fit, and take the time that is said."""
    answer = answered(seed)
    if answer is None:
        return
    case, found = answer
    assert not found.remedies or found.overflows
    for each in found.remedies:
        name, value = each.options.removeprefix("--").split()
        other = case.judged(**{name: int(value) if value.isdecimal() else value})
        assert not other.overflows and other.value == each.value
