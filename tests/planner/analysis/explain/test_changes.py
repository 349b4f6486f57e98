"""Gains of changes: each figure is that of a direct solve of the changed problem."""

import pytest

from helpers.explained import lean
from helpers.instances import equal_devices, fat_head, model_of
from pipeplan.analysis.explain import explain
from pipeplan.analysis.explain.changes import (
    GIB,
    GIGABYTE,
    changes,
    link_kinds,
    with_bandwidth,
    with_devices,
    with_memory,
)
from pipeplan.analysis.explain.feasible import limits_never_bind
from pipeplan.analysis.explain.outcome import Outcome
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job
from pipeplan.solve import solve


def two_nodes(network: int = 10**9) -> Cluster:
    """Cluster of two fast devices in one node, two slow ones in another, and a network between them."""
    kinds = {"unit": DeviceKind("unit", memory=200), "slow": DeviceKind("slow", 160, timed_as="unit", speed=0.5)}
    nodes = (Node(("unit", "unit"), Link(4 * 10**9, 1)), Node(("slow", "slow"), Link(2 * 10**9, 1)))
    return Cluster("two nodes", kinds, nodes, Link(network, 2), Overlap.COPY)


def test_every_figure_is_that_of_a_direct_solve() -> None:
    """Value and bound of every change equal a fresh solve of the changed cluster and job; gains are per sample."""
    model, cluster = fat_head(), two_nodes()
    job = Job(batch=8, micro_batches=(2, 4), schedules=("1f1b-sno",), replicas=(1,))
    result = solve(model, cluster, job=job)
    found = explain(model, cluster, result=result, each=60)
    tried = {outcome.label: outcome for outcome in found.outcomes}
    asked = list(changes(model, cluster, job, result.plan))
    assert list(tried) == [change.label for change in asked]
    for change in asked:
        outcome = tried[change.label]
        if outcome.value is None:
            assert "no plan" in str(outcome) and outcome.why
            continue
        again = solve(model, change.cluster, job=change.job)
        if not outcome.why:
            assert (outcome.value, outcome.bound) == (again.value, again.bound)
        per_sample = (again.value / change.job.batch) / (result.value / job.batch)
        assert outcome.gains == pytest.approx(1 - per_sample)
        assert change.eases is False or again.value <= result.value


def test_changes_touch_what_they_name_and_nothing_else() -> None:
    """More memory, bandwidth and devices are added at the named places only."""
    cluster, job = two_nodes(), Job(batch=8, memory=100, pin=(("l0", "d2"), ("l1", "unit"), ("l2", "d1")))
    more, limited = with_memory(cluster, job, GIB)
    assert [kind.memory for kind in more.kinds.values()] == [200 + GIB, 160 + GIB]
    assert limited.memory == 100 + GIB
    inside, outside, network = link_kinds(cluster)
    assert [kind.label for kind in (inside, outside)] == ["the links inside node 0", "the links inside node 1"]
    faster = with_bandwidth(cluster, inside, GIGABYTE)
    assert [node.link.bandwidth for node in faster.nodes] == [5 * 10**9, 2 * 10**9]
    assert with_bandwidth(cluster, network, GIGABYTE).network == Link(2 * 10**9, 2)
    grown, moved = with_devices(cluster, job, "unit")
    assert [node.kinds for node in grown.nodes] == [("unit",) * 3, ("slow",) * 2]
    assert moved.pin == (("l0", "d3"), ("l1", "unit"), ("l2", "d1"))
    assert grown.devices[3].kind == cluster.devices[2].kind


def test_equal_nodes_have_one_kind_of_link() -> None:
    """Equal links are changed, and named, once; free ones not at all."""
    node = Node(("unit", "unit"), Link(10**9))
    cluster = Cluster("pair", {"unit": DeviceKind("unit")}, (node, node), Link(), Overlap.COPY)
    assert [kind.label for kind in link_kinds(cluster)] == ["the links inside a node", "the network between nodes"]
    model = model_of([5, 5])
    plan = solve(model, cluster, batch=2).plan
    labels = [change.label for change in changes(model, cluster, Job(2), plan)]
    assert labels[:2] == ["1 GB/s more on the links inside a node", "one more unit"]


def test_micro_batches_are_judged_by_the_sample() -> None:
    """Twice as many micro-batches take more time in all and less for each sample, because the pipeline fills once."""
    model = model_of([10, 10], parameters=[12, 12])
    cluster = equal_devices(2, memory=30)
    result = solve(model, cluster, batch=4, replicas=(1,))
    found = explain(model, cluster, result=result, each=30)
    double = next(outcome for outcome in found.outcomes if outcome.label.startswith("twice as many micro"))
    assert result.value == (4 + 1) * 30 and double.value == (8 + 1) * 30
    assert double.gains == pytest.approx(1 - (9 / 8) / (5 / 4))


def outcome(value: int | None, bound: int | None, gains: float, at_most: float) -> Outcome:
    return Outcome("change", value, bound, 1, gains, at_most)


def test_verdicts_say_no_more_than_is_proved() -> None:
    """The verdict separates the gain that was found from the proved bound."""
    assert outcome(90, 90, 0.1, 0.1).verdict == "10.00 % less time per sample"
    assert outcome(90, 80, 0.1, 0.2).verdict == "10.00 % less time per sample, at most 20.00 %"
    assert outcome(100, 80, 0.0, 0.2).verdict == "nothing found, at most 20.00 % less"
    assert outcome(110, 80, -0.1, 0.2).verdict == "nothing found, at most 20.00 % less"
    assert outcome(100, 100, 0.0, 0.0).verdict == "nothing, proved"
    assert outcome(110, 110, -0.1, -0.1).verdict == "10.00 % more time per sample"
    assert outcome(120, 110, -0.2, -0.1).verdict == "20.00 % more time per sample, at least 10.00 %"
    assert outcome(90, 80, 0.1, 0.2).gap == pytest.approx(10 / 90)


def test_a_change_without_a_plan_says_why() -> None:
    """A micro-batch size that no profile covers is reported, not guessed at."""
    model = model_of([10, 10], sizes=(2,))
    cluster = equal_devices(2)
    result = solve(model, cluster, batch=4)
    found = explain(model, cluster, result=result, each=30)
    halves = next(outcome for outcome in found.outcomes if "half as large" in outcome.label)
    assert halves.value is None and "profiled" in halves.why


def test_memory_that_no_plan_can_need_is_known_to_bring_nothing() -> None:
    """With room for the whole model and all micro-batches on each device nothing is solved; with a byte less it is."""
    model, job = model_of([10, 20], saved=[3, 4], output=[2, 1], parameters=[8, 4]), lean(4)
    enough = 2 * 12 + 4 * (7 + 3) + 2 * 4
    assert limits_never_bind(model, equal_devices(2, enough), job) and not limits_never_bind(
        model, equal_devices(2, enough - 1), job
    )
    result = solve(model, equal_devices(2, enough), job=job)
    found = explain(model, equal_devices(2, enough), result=result, each=30)
    assert found.memory is not None and found.memory.verdict == "nothing, proved"
    assert "no plan can need more" in str(found.memory)


def test_a_bound_without_limits_holds_with_higher_limits() -> None:
    """The bound of a relaxed problem tightens the largest possible gain, never below the gain that was found."""
    relaxed = outcome(100, 90, 0.0, 0.1)
    assert outcome(95, 70, 0.05, 0.3).within(relaxed) == outcome(95, 90, 0.05, 0.1)
    assert outcome(85, 70, 0.15, 0.3).within(relaxed) == outcome(85, 85, 0.15, 0.15)
    assert outcome(95, 92, 0.05, 0.08).within(relaxed) == outcome(95, 92, 0.05, 0.08)
