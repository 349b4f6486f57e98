"""Frontiers against every plan there is, on small random questions."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.every_plan import every_plan
from helpers.instances import model_of
from pipeplan.analysis.frontier import Frontier, fewest_devices, frontier
from pipeplan.analysis.frontier.curve import memory_of
from pipeplan.analysis.frontier.subsets import Part, sub_cluster
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.core.validate import validate_plan
from pipeplan.solve import solve

Question = tuple[Model, Cluster, Job]


@st.composite
def questions(draw: st.DrawFn, kinds: int = 1) -> Question:
    """Two to four layers on up to three devices of a box, GPipe without replicas, limits that may exclude all."""
    n = draw(st.integers(2, 4))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    model = model_of(
        numbers(1, 9),
        saved=numbers(0, 6),
        output=numbers(0, 4),
        parameters=[4 * value for value in numbers(0, 3)],
        update=numbers(0, 3),
        sizes=draw(st.sampled_from([(1,), (1, 2)])),
    )
    memory = st.sampled_from([None, None, 30, 60])
    named = {
        "unit": DeviceKind("unit", draw(memory), price=2.0),
        "slow": DeviceKind(
            "slow", draw(memory), timed_as="unit", speed=0.5, price=draw(st.sampled_from([0.5, 1.0, 1.5]))
        ),
    }
    row = tuple(draw(st.lists(st.sampled_from(list(named)[:kinds]), min_size=1, max_size=3)))
    link = Link(draw(st.sampled_from([None, 10**9, 5 * 10**8])), draw(st.integers(0, 2)))
    cluster = Cluster("box", named, (Node(row, link),), overlap=Overlap.COPY)
    job = Job(
        batch=draw(st.sampled_from([2, 4])),
        memory=draw(memory),
        schedules=("gpipe",),
        replicas=(1,),
        recompute=Recompute.NONE,
    )
    return model, cluster, job


def pareto(pairs: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Cost and time of those that no other pair beats, cheapest first."""
    kept: list[tuple[float, int]] = []
    for cost, time in sorted(pairs):
        if not kept or time < kept[-1][1]:
            kept.append((cost, time))
    return kept


def pairs_of(found: Frontier) -> list[tuple[float, int]]:
    """Cost and time of its points; each bound met."""
    assert found.complete and all(point.bound == point.value for point in found.points)
    return [(point.cost, point.value) for point in found.points]


@given(questions())
@settings(max_examples=40, deadline=None)
def test_the_memory_frontier_is_that_of_all_plans(question: Question) -> None:
    """Every point that no plan beats is there and no other one; each plan is valid, and needs the memory it says."""
    model, cluster, job = question
    oracle = pareto((need, time) for time, need in every_plan(model, cluster, job))
    try:
        found = frontier(model, cluster, job, "memory")
    except InfeasibleError:
        assert not oracle
        return
    assert pairs_of(found) == oracle
    assert found.nothing_below or found.points[0].cost == 0
    for point in found.points:
        validate_plan(point.plan, model, cluster)
        assert memory_of(point.plan) == point.memory == point.cost
    for floor in found.floors:  # what is proved holds for every plan
        times = [time for cost, time in oracle if cost <= floor.cost]
        assert min(times, default=None) == floor.bound or (floor.bound or 0) <= min(times)


@pytest.mark.slow
@given(questions(), st.sampled_from([False, True]))
@settings(max_examples=60, deadline=None)
def test_with_every_choice_open_the_memory_frontier_is_that_of_every_limit(question: Question, zero1: bool) -> None:
    """With replicas, recomputation and all families: solving at each limit, byte by byte, leaves the same points."""
    model, cluster, closed = question
    job = Job(closed.batch, memory=closed.memory, optimizer="momentum", zero=(int(zero1),))
    try:
        found = frontier(model, cluster, job, "memory")
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve(model, cluster, job=job)
        return
    pairs = [(point.cost, point.value) for point in found.points]
    assert found.complete
    for limit in range(int(found.points[-1].cost) + 2):
        reached = [value for cost, value in pairs if cost <= limit]
        if job.memory is not None and limit > job.memory:
            break
        try:
            assert solve(model, cluster, job=replace(job, memory=limit)).value == min(reached)
        except InfeasibleError:
            assert not reached


@given(questions(kinds=2), st.sampled_from(["devices", "price"]))
@settings(max_examples=40, deadline=None)
def test_the_frontier_over_devices_is_that_of_all_parts(question: Question, over: str) -> None:
    """For every number of each kind the best of all plans; of these, those that none beats."""
    model, cluster, job = question
    row = cluster.nodes[0].kinds
    names = list(dict.fromkeys(row))
    each = {name: 1.0 if over == "devices" else cluster.kinds[name].price or 0.0 for name in names}
    best = []
    for counts in product(*(range(row.count(name) + 1) for name in names)):
        if any(counts):
            cost = sum(count * each[name] for count, name in zip(counts, names, strict=True))
            part = sub_cluster(cluster, Part(counts, cost))
            best += [(cost, time) for time, _ in every_plan(model, part, job)]
    try:
        found = frontier(model, cluster, job, over)  # type: ignore[arg-type]
    except InfeasibleError:
        assert not best
        return
    assert pairs_of(found) == pareto(best)
    for point in found.points:
        part = Part(tuple(count for _, count in point.counts), point.cost)
        validate_plan(point.plan, model, sub_cluster(cluster, part))


@given(questions(kinds=2))
@settings(max_examples=40, deadline=None)
def test_fewest_devices_are_the_fewest_that_any_plan_runs_on(question: Question) -> None:
    """No part with fewer devices has a plan; the one returned is the fastest on so many, and valid."""
    model, cluster, job = question
    row = cluster.nodes[0].kinds
    names = list(dict.fromkeys(row))
    times: dict[int, list[int]] = {}
    for counts in product(*(range(row.count(name) + 1) for name in names)):
        if any(counts):
            part = sub_cluster(cluster, Part(counts, 0.0))
            times.setdefault(sum(counts), []).extend(time for time, _ in every_plan(model, part, job))
    enough = [count for count in sorted(times) if times[count]]
    try:
        found = fewest_devices(model, cluster, job)
    except InfeasibleError:
        assert not enough
        return
    assert (found.count, found.value, found.proved) == (enough[0], min(times[enough[0]]), True)
    assert bool(found.excluded) == (found.count > 1)
    validate_plan(found.plan, model, found.cluster)
