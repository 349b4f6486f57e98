"""Large aggregate nodes that are split because their best shape is no plan."""

from dataclasses import replace
from itertools import combinations, pairwise
from types import SimpleNamespace

import pytest

import pipeplan
from helpers.instances import equal_devices, model_of
from helpers.operators import perceptrons
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.core.model import Tie
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.schedules import FAMILIES
from pipeplan.search import turns
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.nodes import layouts
from pipeplan.search.nodes.aggregate import AggregateNode, TargetSchedule
from pipeplan.search.nodes.aggregate_problem import (
    _of_every_team,
    _problem,
    _rings,
    allocation_problem,
    layout_lower_bound,
)
from pipeplan.search.space import space
from pipeplan.search.space.device_groups import Mode
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.simulate import makespan
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation.place import Place
from pipeplan_formulations.common.report import Limits, Report, Status, Stop

MODEL = model_of([10] * 4, [10] * 4, saved=[1] * 4, output=[1] * 4, parameters=[0] * 4, sizes=(1,))
CLUSTER = Cluster("four", {"unit": DeviceKind("unit")}, (Node(("unit",) * 4, Link(10**9, 15)),))


def test_an_aggregate_that_speaks_for_gpipe_keeps_its_plans_where_it_is_split(monkeypatch):
    """Where 1F1B's best shape has a depth that is not asked for, GPipe's plan of the other depth is found."""
    job = Job(batch=8, schedules=("1f1b-sno", "gpipe"), replicas=(1,), depths=(2,))
    right = pipeplan.solve(MODEL, CLUSTER, job=job)
    for module, name in ((space, "FEW"), (space, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    monkeypatch.setattr(space, "LONG", 0)
    found = pipeplan.solve(MODEL, CLUSTER, job=job)
    assert right.plan.schedule.family == found.plan.schedule.family == "gpipe"
    assert found.bound <= found.value == right.value


@pytest.mark.parametrize(("memory", "alone"), [(60, True), (1000, False)])
def test_an_aggregate_counts_two_trips_where_gpipe_has_to_recompute(monkeypatch, memory: int, alone: bool) -> None:
    """Then no plan of GPipe is better than the best of 1F1B; with memory to spare the two are bounded together."""
    model = model_of([10] * 4, [10] * 4, saved=[10] * 4, output=[1] * 4, parameters=[0] * 4, sizes=(1,))
    monkeypatch.setattr(layouts, "SMALL", 0)
    space = Space(model, CLUSTER, Job(batch=16, memory=memory, replicas=(1,)))
    (layout,) = layouts.layouts(space, 16)
    problem, other = (allocation_problem(space, 1, layout, alternating) for alternating in (True, False))
    best = allocation.solve(problem, Limits(10)).objective
    node = AggregateNode(0, space, layout, 1, alternating=True, estimated=True)
    assert node.covers and not problem.two_trips
    assert node._of_one_family(SimpleNamespace(cutoff=best + 1, left=10.0), problem).two_trips is alone
    assert node.alone is alone is (allocation.solve(other, Limits(10)).objective > best)


def test_large_clusters_answer_with_the_depth_that_is_asked_for(monkeypatch):
    """The problem has no least depth; where its best shape is too shallow, deeper ones are looked at."""
    job = Job(batch=8, depths=(3,), recompute="none")
    right = pipeplan.solve(MODEL, CLUSTER, job=job)
    for module, name in ((space, "FEW"), (space, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)
    found = pipeplan.solve(MODEL, CLUSTER, job=job)
    assert len(found.plan.stages) == 3
    assert found.bound <= right.value == found.value


def test_copies_in_several_nodes_are_summed_over_the_network_and_share_its_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the last modes are known, and packed, the problem prices the joint sum of shared weights as it is."""
    monkeypatch.setattr("pipeplan.search.space.space.PLACEMENTS", 0)
    model = model_of([10] * 4, parameters=[1000, 200, 200, 700])
    model = replace(model, ties=(Tie(("l0", "l3"), 300),))
    nodes = (Node(("unit",) * 2, Link(10**9, 1)),) * 2
    cluster = Cluster("four", {"unit": DeviceKind("unit", memory=2050)}, nodes, network=Link(10**6, 3))
    own = Space(model, cluster, Job(batch=4, zero=(0,)))
    (layout,) = (each for each in layouts.layouts(own, 4) if each.unequal)
    modes, edges = (Mode(0, 1), Mode(0, 2), Mode(0, 1)), (0, 1, 3, 4)
    stages = tuple(Place(a, b, 0, mode.replicas) for (a, b), mode in zip(pairwise(edges), modes, strict=True))
    ((_, groups),) = own.every_placed(modes)
    exact = min(each.problem.evaluate(edges) for each in own.candidates(groups, 1))
    known, unknown = (allocation_problem(own, 1, layout, True, last).evaluate(stages) for last in (modes, ()))
    assert unknown < known <= exact <= known + 2


@pytest.mark.parametrize(("memory", "fits"), [(400, True), (20, False)])
def test_layers_may_lie_on_the_devices_with_the_most_memory(memory: int, fits: bool) -> None:
    """Two layers of 200 bytes fit on two larger devices, whatever two smaller ones that stay idle have."""
    model = model_of([10] * 2, parameters=[100] * 2, sizes=(1,))
    kinds = {"unit": DeviceKind("unit", memory=20), "large": DeviceKind("large", memory=memory, timed_as="unit")}
    own = Space(model, Cluster("two", kinds, (Node(("unit", "unit", "large", "large")),)), Job(4, replicas=(1,)))
    (layout,) = layouts.packed_layouts(own, 4)
    assert (layout_lower_bound(own, 1, layout) is not None) == fits


@pytest.mark.parametrize("overlap", ["none", "copy", "stream"])
@pytest.mark.parametrize("sends", [(1, 2, 1), (12, 3, 9), (40, 40, 40), (9, 60, 2)])
@pytest.mark.parametrize("name", ["1f1b-sno", "1f1b-so"])
def test_no_layout_is_bounded_above_what_is_simulated(sends, overlap, name):
    """Whatever the cuts: sends longer than actions delay a device only where it waits for them, in bounds too."""
    model = model_of([10, 7, 12, 9], [13, 8, 20, 11], output=[*sends, 1])
    cluster = equal_devices(4, link=Link(10**9, 3), overlap=overlap)
    own = Space(model, cluster, Job(batch=5, replicas=(1,), micro_batches=(5,)))
    (layout,) = layouts.packed_layouts(own, 5)
    problem = allocation_problem(own, 1, layout, alternating=True)
    for cuts in (c for k in range(4) for c in combinations((1, 2, 3), k)):
        edges = (0, *cuts, 4)
        depth = len(edges) - 1
        counts = FAMILIES[name].in_flight((1,) * depth, 5)
        chain = price(model, cluster, cluster.devices[:depth], 1, own.job)
        simulated = makespan(FAMILIES[name].write((1,) * depth, 5), assemble(chain, cluster, edges))
        places = tuple(Place(a, b, 0, 1, k) for a, b, k in zip(edges, edges[1:], counts, strict=False))
        assert problem.evaluate(places) <= simulated, (edges, counts)


@pytest.mark.parametrize("replicas", [(2,), (4,), (1, 2), (2, 1)])
def test_forwards_hide_gathers_of_wide_stages_in_bounds_too(replicas):
    """Where a layout has stages of one device, which gather nothing, those of several still gather beside forwards."""
    model, cluster = model_of([30] * 4, parameters=[100] * 4), equal_devices(4, link=Link(10**9, 1))
    own = Space(model, cluster, Job(batch=8, micro_batches=(8,), zero=(1,)))
    (layout,) = layouts.layouts(own, 8)
    edges = (0, 2, 4) if len(replicas) > 1 else (0, 4)
    groups, first = [], 0
    for count in replicas:
        groups.append(cluster.devices[first : first + count])
        first += count
    counts = FAMILIES["1f1b-sno"].in_flight(replicas, 8)
    pipeline = assemble(price(model, cluster, groups, 1, own.job), cluster, edges)
    simulated = makespan(FAMILIES["1f1b-sno"].write(replicas, 8), pipeline)
    rows = zip(edges, edges[1:], replicas, counts, strict=False)
    places = tuple(Place(a, b, 0, width, k) for a, b, width, k in rows)
    assert allocation_problem(own, 1, layout, alternating=True).evaluate(places) <= simulated


def test_a_faster_network_counts_for_replicas_of_a_node_too():
    """Where stages differ in width, a pair of replicas may lie in two nodes though others share one."""
    node = Node(("unit",) * 4, Link(10**9))
    cluster = Cluster("eight", CLUSTER.kinds, (node, node), Link(10**11))
    own = Space(model_of([10] * 4, output=[100] * 4), cluster, Job(batch=8, micro_batches=(8,)))
    (layout,) = (each for each in layouts.layouts(own, 8) if len(each.widths) > 1)
    sends = allocation_problem(own, 1, layout, alternating=True).send
    assert sends.max() == 1  # 100 bytes over the network; inside a node they take 100 ns


def test_tiles_of_one_replica_sum_over_the_network_alone():
    """Two replicas in a node also pass its links, which are slower here."""
    node = Node(("unit",) * 4, Link(10**9))
    cluster = Cluster("sixteen", CLUSTER.kinds, (node,) * 4, Link(10**11))
    own = Space(model_of([10] * 4, parameters=[100] * 4), cluster, Job(batch=8, micro_batches=(8,)))
    (each,) = own.classes
    rings = {
        layout.tile: _rings(own, each, layout, 4)
        for layout in layouts.layouts(own, 8)
        if (layout.unit, len(layout.widths)) == (4, 1)
    }
    assert [ring.link.bandwidth for ring in rings[2]] == [10**9]
    assert all(ring.link.bandwidth > 10**9 for ring in rings[1])


def test_an_answer_has_the_bound_of_each_layout(monkeypatch):
    """All layouts of a large cluster are named, least bound first; together they bound no less than the answer."""
    for module, name in ((space, "FEW"), (space, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)
    found = pipeplan.solve(MODEL, CLUSTER, job=Job(batch=8, micro_batches=(8,)))
    bounds = [bound for _, bound in found.layouts]
    names = {name for name, _ in found.layouts}
    assert {f"micro-batch 1, {each}" for each in ("1 replica each", "4 replicas each", "unequal replicas")} <= names
    assert bounds == sorted(bounds)
    assert found.bound <= bounds[0]
    assert bounds[-1] <= found.value
    assert found.as_json()["layouts"][0]["bound_s"] == bounds[0] / 1e9


def unlike_teams(shared=0, **options):
    """The space of teams of one and two devices side by side, on eight. ``shared``: bytes of both ends."""
    job = Job(8, micro_batches=(8,), teams=(1, 2), zero=(0, 1), optimizer="adam", unlike_teams=True, **options)
    cluster = replace(equal_devices(8), nodes=(Node(("unit",) * 8, Link(10**7, 1)),))
    model = perceptrons()
    if shared:
        last = replace(model.layers[-1], parameters=model.layers[-1].parameters - shared)
        model = replace(model, layers=(*model.layers[:-1], last), ties=(Tie(("l0", "l3"), shared),))
    (mixed,) = Spaces(model, cluster, job).mixed
    return mixed


@pytest.mark.parametrize("equal", [False, True])
def test_stages_of_unlike_teams_may_have_unlike_numbers_of_replicas(equal):
    """In one layout, as long as no plan of equal ones is asked for; then each number has its own."""
    widths = [
        {each.unit * width for width in each.widths} for each in layouts.layouts(unlike_teams(equal_replicas=equal), 8)
    ]
    assert any({1, 2, 3} <= own for own in widths) is not equal
    assert {1, 2, 4} <= set().union(*widths)


def test_teams_of_several_sizes_are_bounded_at_all_levels_of_zero():
    """A level that shares out state is bounded too: the bytes are the least over all, and so is what takes time."""
    mixed = unlike_teams()
    assert [each.job.level for each in mixed.levels] == [0, 1]
    fewer = 0
    for layout in layouts.layouts(mixed, 8):
        whole = _of_every_team(mixed, 1, layout, True)
        for level in mixed.levels:
            own = _problem(level, 1, layout, True, mixed.home)
            for name in ("resident", "update", "reduce", "gather", "forward", "backward"):
                assert (getattr(whole, name) <= getattr(own, name)).all()
            fewer += (whole.resident < own.resident).any()
    assert fewer


def test_layers_that_share_weights_with_the_last_one_lie_on_teams_of_its_size():
    """No stage of another size has room for the first of them, and device groups of such stages are not listed."""
    mixed = unlike_teams(shared=64)
    (layout,) = layouts.layouts(mixed, 8)
    for last, (_, size) in enumerate(mixed.teams):
        problem = allocation_problem(mixed, 1, layout, True, (Mode(last, 1),))
        room = (problem.resident <= problem.limit[:, None, None]).all(axis=1)
        assert room[:, 1:].all()
        assert room[:, 0].tolist() == [team == size for _, team in mixed.teams]
    one, two = (next(k for k, (_, team) in enumerate(mixed.teams) if team == size) for size in (1, 2))
    assert not list(mixed.every_placed((Mode(one, 1), Mode(two, 1))))
    assert list(mixed.every_placed((Mode(one, 1), Mode(two, 1), Mode(one, 1))))


def test_a_tree_that_is_not_decided_in_time_is_solved_for_better_values_first(monkeypatch):
    """Its root keeps what is known of its spans; the nodes below come once a target is decided."""
    own = Space(MODEL, CLUSTER, Job(batch=8, replicas=(1,), depths=(2, 3, 4), schedules=("gpipe",)))
    (layout,) = layouts.layouts(own, 8)
    plain, stops, cutoffs = allocation.Solver.run, [Stop.TIME], []

    def run(solver, limits, cutoff=None):
        report = plain(solver, limits, cutoff)
        cutoffs.append(cutoff)
        return replace(report, status=Status.FEASIBLE, stop=stops.pop(), bound=1) if stops else report

    monkeypatch.setattr(allocation.Solver, "run", run)
    search = PlanSearch(Limits(60.0), cluster_of=lambda _: CLUSTER, backend="exact")
    search.value = 2 * plain(allocation.Solver(allocation_problem(own, 1, layout, False)), Limits(60.0)).objective
    node = AggregateNode(1, own, layout, 1, alternating=False, estimated=True, targets=None)
    assert node.small
    while (below := node.advance(search).nodes) == [node]:
        assert len(cutoffs) < 20
    assert len(cutoffs) > 2 and cutoffs[1:] == sorted({*cutoffs[1:]})
    assert below and all(each.last for each in below)


@pytest.mark.parametrize("value", [None, 900, 1000])
def test_no_target_follows_that_of_an_allocation(value: int | None) -> None:
    """What was found below a target is the optimum, but for the accuracy; unless the best plan excludes it by now."""
    search = PlanSearch(Limits(gap=0.001), cluster_of=lambda _: CLUSTER)
    search.value = 1000
    targets = TargetSchedule()
    first = targets.next_below(search, 700)
    assert (first.cutoff, first.last) == (800, False)
    targets.reached(790 if value is None else value)
    again = targets.next_below(search, 795 if value == 1000 else 780)
    assert (again.cutoff, again.last) == {None: (791, True), 900: (901, True), 1000: (800, False)}[value]


@pytest.mark.parametrize("found", [790, None])
def test_targets_go_on_where_trips_exclude_the_known_allocation(found: int | None, monkeypatch) -> None:
    """Its target was the last one only as long as there was that allocation; without one the last target ends them."""
    report = Report(Status.UNKNOWN, Stop.GAP, None, 791, 0.0, "own", "", 0, None)
    monkeypatch.setattr(allocation.Solver, "run", lambda *_: report)
    own = Space(MODEL, CLUSTER, Job(batch=8, replicas=(1,), depths=(2, 3, 4), schedules=("gpipe",)))
    (layout,) = layouts.layouts(own, 8)
    search = PlanSearch(Limits(60.0, gap=0.001), cluster_of=lambda _: CLUSTER, backend="exact")
    search.value = 1000 if found is not None else 791
    node = AggregateNode(790, own, layout, 1, alternating=False, estimated=True, targets=TargetSchedule(found=found))
    step = node.advance(search)
    assert [*step.nodes] == ([node] if found is not None else [])
    assert node.targets.found is None
