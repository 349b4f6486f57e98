"""Mutations of the planner that the referee must notice."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest

from helpers.noticed import noticed
from helpers.quick import rarely
from pipeplan.core import searched
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.model import LayerCost, Model
from pipeplan.core.operators import Operator, OperatorGraph
from pipeplan.core.schedule import Kind
from pipeplan.core.strategies import PARTIAL, Placements, Strategy
from pipeplan.costs import assembly
from pipeplan.costs.collectives import Ring
from pipeplan.costs.kept import Kept
from pipeplan.costs.sharded import Passes, Units
from pipeplan.costs.sharding import device_costs, members, prices, strategies
from pipeplan.costs.sharding.attention import KeyExchange, SplitAttention
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.copies import CopiedTensor
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.redistributions import times
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.splits import LEAN
from pipeplan.costs.synchronization import Synchronization
from pipeplan.search import turns
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.local_search import pool
from pipeplan.search.nodes import aggregate_problem, layouts, shapes
from pipeplan.search.nodes.aggregate import AggregateNode
from pipeplan.search.nodes.device_groups import DeviceGroupsNode, UnplacedNode
from pipeplan.search.nodes.family import FamilyNode
from pipeplan.search.nodes.partitions import PartitionsNode
from pipeplan.search.nodes.shapes import ShapeTables
from pipeplan.search.space import candidates, device_groups, outside, placing, shared_links
from pipeplan.search.space.device_groups import DeviceClass
from pipeplan.search.space.pins import Pins
from pipeplan.search.space.placing import Placing
from pipeplan_formulations.allocation import ChainAllocation, FurthestEnd
from pipeplan_formulations.allocation.joined import joined, together
from pipeplan_formulations.allocation.suffix_bounds.passes import Pass
from pipeplan_formulations.allocation.tables import AllocationTables
from pipeplan_formulations.common.exposed import Collectives, Exposed
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.partition import listing
from pipeplan_formulations.partition.spans import NEVER
from pipeplan_formulations.partition.tables import PartitionTables
from referee import questions
from referee.bridge import ask
from referee.operators import in_equal_teams
from referee.questions import question
from referee.verdict import judge

space = import_module("pipeplan.search.space.space")
shapes_of_meshes = import_module("pipeplan.costs.sharding.shapes")


@pytest.fixture(autouse=True)
def without_equal_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the local search's equal groups, which may be the plans that a wrong bound leaves out."""
    monkeypatch.setattr(pool, "even_modes", lambda _: iter(()))


def fully_sharded(document: dict[str, Any]) -> None:
    """Two replicas share out all, over links that are slower for single layers."""
    document["job"] = {"batch": 4, "zero": [3], "replicas": [2]}
    for node in document["cluster"]["nodes"]:
        node["link"] |= {"bandwidth": 10**9, "unit_efficiency": 0.5}


def on_unlike_nodes(document: dict[str, Any]) -> None:
    """Three stages of two replicas on two nodes: at each boundary, one pair of replicas sends over the network."""
    cluster, kind = document["cluster"], min(document["cluster"]["devices"])
    link = {"bandwidth": 4 * 10**9}
    nodes = [{"devices": [{"kind": kind, "count": 1}] * count, "link": link} for count in (3, 3)]
    cluster |= {"nodes": nodes, "network": {"bandwidth": 10**8, "latency": 0}}
    document["job"] = {"batch": 4, "zero": [3], "replicas": [2], "depths": [3], "order": "given"}
    document["job"] |= {"recompute": "none", "extrapolate": True}
    document["model"].pop("ties", None)


def share_of_the_optimizer(document: dict[str, Any]) -> None:
    """Two replicas of each stage share out the optimiser's state, over links that are slow to gather."""
    document["job"] = {"batch": 2, "zero": [1], "replicas": [2], "micro_batches": [2], "extrapolate": True}
    for node in document["cluster"]["nodes"]:
        node["link"] |= {"bandwidth": 10**8}


def spacious(document: dict[str, Any]) -> None:
    """No memory limit, nothing sharded and no gap: every question has a plan, and the best one is asked for."""
    document["job"] = {**document["job"], "zero": [0], "recompute": "none"}
    document["job"].pop("memory", None)
    document["solve"] |= {"gap": 0.0, "time_limit": 60.0}
    for kind in document["cluster"]["devices"].values():
        kind.pop("memory", None)


def hardly_apart(document: dict[str, Any]) -> None:
    """Two nodes of two devices and many micro-batches of unlike layers: many plans are a few per cent apart.

    Then a stage's own work is nearly all of the step.
    """
    spacious(document)
    cluster, kind = document["cluster"], min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 2, "link": {"bandwidth": 10**9}}
    cluster |= {"nodes": [node, node], "network": {"bandwidth": 10**8, "latency": 3}}
    document["job"] = {"batch": 12, "micro_batches": [12], "zero": [0], "recompute": "none", "extrapolate": True}
    random = Random(str(document["model"]))
    for profile in document["model"]["profiles"]:
        for costs in profile["costs"].values():
            passes = [random.randint(50, 150) * profile["micro_batch"] for _ in range(3)]
            costs |= dict(zip(("forward", "input_gradient", "weight_gradient"), passes, strict=True))
            costs |= {"backward": sum(passes[1:]), "update": random.randint(0, 400)}


def aggregated(document: dict[str, Any]) -> bool:
    """Several nodes, devices in any order, the time of a step of families: where layouts are priced."""
    job = document["job"]
    others = {"order", "objective", "intra_layer"} & job.keys() or "any" in job.get("schedules", ())
    return len(document["cluster"]["nodes"]) > 1 and not others


def replicated(document: dict[str, Any]) -> None:
    """Stages reach over two nodes, whose network is faster than the links inside."""
    cluster = document["cluster"]
    node = {"devices": [{"kind": min(cluster["devices"]), "count": 1}] * 2, "link": {"bandwidth": 10**8}}
    cluster |= {"nodes": [node, node], "network": {"bandwidth": 4 * 10**9, "latency": 0}}
    document["job"] = {"batch": 4, "recompute": "none", "extrapolate": True}


def inside(ring: Ring, each: DeviceClass) -> Ring:
    """As if all replicas shared a node."""
    return Ring(ring.replicas, each.link)


def slow(ring: Ring, each: DeviceClass) -> Ring:
    """As if the link were fifty times as slow."""
    bandwidth = ring.link.bandwidth
    return Ring(ring.replicas, replace(ring.link, bandwidth=None if bandwidth is None else bandwidth // 50))


@pytest.mark.parametrize("wrong", [inside, slow])
def test_a_wrong_ring_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Ring, DeviceClass], Ring]) -> None:
    """Where a layout lets replicas pay more than they do, bounds lie above the optimum."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))  # they price no layouts
    rings = aggregate_problem._rings
    monkeypatch.setattr(
        aggregate_problem, "_rings", lambda own, each, *rest: [wrong(r, each) for r in rings(own, each, *rest)]
    )
    assert "above the optimum" in noticed(aggregated, replicated, first=84)


def summed_by_trees(level: int, document: dict[str, Any]) -> None:
    """Four devices at this level of ZeRO, over links on which latency counts: four rounds by a tree, six by a ring."""
    kind = min(document["cluster"]["devices"])
    link = {"bandwidth": 4 * 10**9, "latency": 30, "collective": "tree"}
    document["cluster"] |= {"nodes": [{"devices": [{"kind": kind, "count": 1}] * 4, "link": link}], "network": None}
    document["job"] = {"batch": 8, "replicas": [4], "zero": [level], "extrapolate": True}


def untied(document: dict[str, Any]) -> bool:
    """No layers share weights."""
    return not document["model"].get("ties")


@pytest.mark.parametrize(("module", "level"), [("network", 0), ("network", 1), ("synchronization", 3)])
def test_rings_in_place_of_what_links_name_are_noticed(
    monkeypatch: pytest.MonkeyPatch, module: str, level: int
) -> None:
    """Sums of stages, and gathers of single layers, take what the algorithm of another package takes."""
    priced = import_module(f"pipeplan.costs.{module}")
    monkeypatch.setattr(getattr(priced, "collectives", priced), "all_reduce", Ring)
    assert "the step takes" in noticed(untied, partial(summed_by_trees, level), first=0)


def test_bounds_on_rings_where_links_name_others_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of four takes longer than a tree, and bounds no layout of many; local search finds the optimum."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    monkeypatch.setattr(import_module("pipeplan.solve.solving"), "searches_locally", lambda _: False)
    monkeypatch.setattr(import_module("pipeplan.search.space.least"), "all_reduce", Ring)
    assert "above the optimum" in noticed(untied, partial(summed_by_trees, 0), first=17)


def test_a_programme_that_promises_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a layout's first bound is a tenth too high, better plans are not searched."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))  # they know no layouts
    bound = FurthestEnd.lower_bound
    monkeypatch.setattr(FurthestEnd, "lower_bound", lambda *own, **how: min(bound(*own, **how) * 11 // 10, own[2]))
    assert "above the optimum" in noticed(aggregated, spacious, first=67)


def test_an_ending_that_is_a_tenth_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a stage's work and ending are priced a tenth too high, stages of better plans are left out."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))  # they know no layouts
    in_time = Pass.in_time
    monkeypatch.setattr(Pass, "in_time", lambda own, mode, a, b, term, into: in_time(own, mode, a, b, term * 1.1, into))
    assert "above the optimum" in noticed(
        lambda document: aggregated(document) and several(document), hardly_apart, first=74
    )


def test_a_bound_of_shapes_that_promises_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bounds of all shapes are a tenth too high, better plans are not searched."""
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    bounds = ShapeTables.bounds
    monkeypatch.setattr(ShapeTables, "bounds", lambda *own: np.minimum(bounds(*own) * 11 // 10, NEVER))
    assert "above the optimum" in noticed(lambda document: "order" not in document["job"], first=1)


def test_a_gate_that_stands_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heuristic's plan outside what was asked is no answer."""
    monkeypatch.setattr(outside, "unasked", lambda *_: None)
    assert "outside what was asked" in noticed(lambda document: "order" in document["job"], first=114)


@pytest.mark.parametrize(
    ("kind", "first"), [(DeviceGroupsNode, 1084), (PartitionsNode, 4), (FamilyNode, 446), (AggregateNode, 362)]
)
def test_a_node_that_forgets_what_it_leaves_is_noticed(
    monkeypatch: pytest.MonkeyPatch, kind: type[Node], first: int
) -> None:
    """Without itself, and the bound of what is left unexamined, the answer is called optimal where it is not."""
    advance = kind.advance

    def forgetful(node: Node, search: PlanSearch) -> Step[Node]:
        return Step([each for each in advance(node, search).nodes if each is not node], None)

    monkeypatch.setattr(kind, "advance", forgetful)
    monkeypatch.setattr(space, "PAIRS", 0)
    if kind is FamilyNode:
        monkeypatch.setattr(listing, "MOST", 0)
        monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))  # they find what it would
    if kind is AggregateNode:
        monkeypatch.setattr(space, "FEW", 0)
        monkeypatch.setattr(layouts, "SMALL_CELLS", 0)
    assert "above the optimum" in noticed(
        lambda document: aggregated(document) or kind is not AggregateNode, rough, first
    )


def test_placements_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that may lie packed or in tiles, of which only the last is searched."""
    advance = UnplacedNode.advance
    monkeypatch.setattr(
        UnplacedNode,
        "advance",
        lambda self, search: Step(advance(self, search).nodes[-1:], None),
    )
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    assert "above the optimum" in noticed(lambda document: True, spacious, first=101)


def overlapped(document: dict[str, Any]) -> bool:
    """Reductions run beside a backward on several devices that are summed over."""
    job = document["job"]
    overlaps = job.get("overlap_reduction", True) and document["cluster"]["overlap"] is not False
    devices = sum(len(node["devices"]) for node in document["cluster"]["nodes"])
    return overlaps and job.get("objective") != "bottleneck" and devices > 1


def slowed(speed: float, level: int, document: dict[str, Any]) -> None:
    """Two replicas of each stage compute at this speed beside collectives over slow links, at a level of ZeRO."""
    share_of_the_optimizer(document)
    document["job"]["zero"], document["cluster"]["overlap"] = [level], True
    for kind in document["cluster"]["devices"].values():
        kind["speed_beside_collectives"] = speed


def test_backwards_that_hide_twice_as_much_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are then quicker on paper than they are."""
    hides = Synchronization.hides
    monkeypatch.setattr(Synchronization, "hides", lambda *own: 2 * hides(*own))
    assert "the step takes" in noticed(overlapped, first=125)


def test_kinds_that_hide_although_they_cannot_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of device that computes nothing beside a collective."""
    hides = Synchronization.hides
    monkeypatch.setattr(
        Synchronization, "hides", lambda own, kind, *n: hides(own, replace(kind, speed_beside_collectives=1), *n)
    )
    assert "the step takes" in noticed(lambda document: True, partial(slowed, 0.0, 0), first=39)


@pytest.mark.parametrize("level", [0, 1])
def test_a_loss_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """Sums and gathers that hide as much as they do, beside a pass that is slower for them."""
    monkeypatch.setattr(Synchronization, "lost", lambda own, kind, ring: 0 * own.kept.parameters(kind))
    assert "the step takes" in noticed(lambda document: True, partial(slowed, 0.5, level), first=39)


def test_passes_that_lose_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fully sharded stages that compute beside a collective as fast as alone."""
    monkeypatch.setattr(import_module("pipeplan.costs.sharded"), "lost", lambda times, speed: 0 * times)
    assert "the step takes" in noticed(
        lambda document: not document["model"].get("ties"), partial(slowed, 0.5, 3), first=21
    )


def test_gathers_that_nobody_waits_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fully sharded stages whose forwards take as long as whole ones."""
    monkeypatch.setattr(Passes, "_forward_waits", lambda own, *_: 0 * own.gather)
    assert "the step takes" in noticed(lambda document: max(document["job"].get("zero", [0])) == 3, first=72)


def test_stages_whose_first_gather_is_hidden_by_others_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the stage before computed the layers of this one."""
    monkeypatch.setattr(Passes, "of", lambda own, a, b: tuple(int(row[a:b].sum()) for row in own.least))
    assert "the step takes" in noticed(lambda document: not document["model"].get("ties"), fully_sharded, first=76)


def test_replicas_that_gather_without_each_other_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins its passes when its own tensors are there, although another one's are not."""
    assembly = import_module("pipeplan.costs.assembly")
    monkeypatch.setattr(assembly, "SHARDED", 4)
    assert "the step takes" in noticed(lambda document: len(document["model"]["layers"]) > 2, on_unlike_nodes, first=69)


def test_gathers_without_overhead_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers and sums of layers priced like parts of an all-reduce."""
    monkeypatch.setattr(Link, "in_units", property(lambda own: own))
    assert "the step takes" in noticed(lambda document: not document["model"].get("ties"), fully_sharded, first=39)


def test_gathers_that_every_forward_hides_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that begin a step before their first layer's parameters are there."""
    monkeypatch.setattr(Synchronization, "gather", lambda own, ring, sizes: 0 * sizes)
    assert "the step takes" in noticed(lambda document: True, share_of_the_optimizer, first=130)


def test_bounds_with_the_gathers_of_later_stages_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those pass while the first tensors are on their way."""
    init = Collectives.__init__
    monkeypatch.setattr(Collectives, "__init__", lambda own, *parts, everywhere: init(own, *parts, everywhere=True))
    assert "above the optimum" in noticed(
        lambda document: len(document["model"]["layers"]) > 1, share_of_the_optimizer, first=59
    )


def test_a_level_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only level 0 is searched, whether others are named or not."""
    solve = import_module("pipeplan.solve.solving")
    monkeypatch.setattr(solve, "promising", lambda spaces: [space for space in spaces if not space.job.level])
    assert noticed(lambda document: 0 in document["job"].get("zero", [0]) != [0], first=64)
    assert noticed(lambda document: "zero" not in document["job"], first=21)


def test_bounds_that_hide_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds with the whole reduction lie above plans that hide a part of it."""
    init = Exposed.__init__
    monkeypatch.setattr(Exposed, "__init__", lambda own, reduce, hides, *bases: init(own, reduce, 0 * hides, *bases))
    assert "above the optimum" in noticed(overlapped, first=40)


def rough(document: dict[str, Any]) -> None:
    """A tenth less is good enough, so that much is left."""
    document["solve"]["gap"] = 0.1
    document["job"].pop("pin", None)


def in_a_long_run(document: dict[str, Any]) -> bool:
    """The time from step to step."""
    return document["job"].get("objective") == "period"


def slow_to_update(document: dict[str, Any]) -> None:
    """The last layer's update takes as long as a few micro-batches."""
    last = document["model"]["layers"][-1]["name"]
    for profile in document["model"]["profiles"]:
        cost = profile["costs"][last]
        cost["update"] = 3 * (cost["forward"] + cost["backward"] + 1)


def test_periods_bounded_like_steps_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long run a stage does not wait for those before it in every step: a step's bound may be above the best."""
    partition_problem, terms = candidates.partition_problem, shapes._Terms
    monkeypatch.setattr(
        candidates, "partition_problem", lambda *counts: replace(partition_problem(*counts), objective="step")
    )
    monkeypatch.setattr(shapes, "_Terms", lambda **parts: terms(**{**parts, "objective": "step"}))
    assert "above the optimum" in noticed(in_a_long_run, slow_to_update, first=40)


def test_last_stages_that_always_end_with_the_first_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a joint sum the last stage's update waits for nobody, and the first stage's backwards hide it."""
    monkeypatch.setattr(PartitionTables, "ends_together", property(lambda own: own.stages > 1))
    assert "above the optimum" in noticed(lambda document: "ties" not in document["model"], slow_to_update)


def far_apart(document: dict[str, Any]) -> None:
    """As `hardly_apart`, with tensors that take long over the network, beside computation."""
    hardly_apart(document)
    document["cluster"] |= {"overlap": True, "network": {"bandwidth": 10**8, "latency": 3}}


def test_pairs_of_replicas_that_are_slower_than_they_are_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where slow pairs count fifty times the bound is above the step of the best partition."""
    slower = shared_links.slower_pairs
    monkeypatch.setattr(space, "slower_pairs", lambda *own: 50 * slower(*own))
    assert "above the optimum" in noticed(
        lambda document: aggregated(document) and several(document), far_apart, first=494
    )


def test_periods_without_what_other_stages_do_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a step of the first stage always took as long as in a step by itself."""
    for room in ("pipeplan.simulate", "pipeplan.simulate.recurrence"):
        monkeypatch.setattr(
            sys.modules[room], "long_run", lambda advance, first, earliest, _: advance([0] * len(earliest))[first[0]]
        )
    assert "the plan's value is" in noticed(in_a_long_run, slow_to_update, first=52)


def on_teams(document: dict[str, Any]) -> None:
    """Teams of two for whole batches, without limits; times are long, so that teams are worth it."""
    document["job"] = {"batch": 4, "teams": [2], "zero": [0], "recompute": "none", "extrapolate": True}
    document["job"]["depths"] = [min(len(document["cluster"]["nodes"]), 2)]
    for entry in document["cluster"]["devices"].values():
        entry.pop("memory", None)


def kept(document: dict[str, Any]) -> int:
    """Bytes that operators keep."""
    graphs = document["model"]["operators"].values()
    return sum(each["output"] for graph in graphs for each in graph["operators"] if each["kept"])


def backward_for_nothing(own: MeshProblem, name: str, gradient: bool) -> Any:
    """As if gradients were redistributed in no time."""
    free = times(0, own.mesh.sizes, own.mesh.links, own.tensors[name].parts, own.mesh.sharing)
    return free if gradient else MOVES(own, name, gradient)


def saved_whole(layout: Placements, sizes: Sequence[int]) -> int:
    """As if every tensor that is kept were held whole."""
    return 1


MOVES = MeshProblem.moves


@pytest.mark.slow
def test_members_that_need_all_workspace_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the workspace of a member were that of a device that has the whole layer."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(LayerCost, "workspace_for", lambda cost, saved: cost.workspace)
    assert noticed(lambda document: not document["model"].get("ties") and kept(document) > 8, on_teams, first=76)


@pytest.mark.parametrize(
    ("room", "name", "wrong"),
    [
        (MeshProblem, "moves", backward_for_nothing),
        (import_module("pipeplan.costs.sharding.problem"), "share", saved_whole),
    ],
)
def test_members_that_cost_too_little_or_too_much_are_noticed(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, wrong: Any
) -> None:
    """Gradients that nobody waits for, and parts that take as many bytes as the whole."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(room, name, wrong)
    assert noticed(lambda document: not document["model"].get("ties") and kept(document) > 8, on_teams, first=118)


def test_whole_gradients_that_are_no_part_of_a_sum_on_meshes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same along each axis of a mesh; nothing is noticed before."""
    redistributions = import_module("pipeplan.costs.sharding.redistributions")
    way = redistributions._sent

    def wrong(source: Placements, target: Placements) -> Placements | None:
        new = any(after == PARTIAL != before for before, after in zip(source, target, strict=True))
        return None if new else way(source, target)

    def on_a_mesh(document: dict[str, Any]) -> None:
        of_operators(beside_a_residual(3), document)
        over_nodes(document)
        document["cluster"]["network"] = {"bandwidth": 10**8, "latency": 1}
        document["job"]["micro_batches"] = [4]  # of one sample, so that none is split
        take_long(document)

    monkeypatch.setattr(questions, "TEAMS", 1.0)
    on_a_mesh(document := question(130))
    assert not judge(document, ask(document), exact=False).faults
    monkeypatch.setattr(redistributions, "_sent", wrong)
    assert "fastest strategies" in noticed(lambda document: True, on_a_mesh, first=130)


def test_outputs_whose_gradients_are_summed_up_by_each_reader_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what operators return for an output were no parts of a sum to which its gradient from behind is added."""

    def wrong(own: MeshProblem, name: str) -> tuple[Placements, ...]:
        return (own._end(name),) if name in own.graph.outputs else layouts(own, name)

    def passing_on(document: dict[str, Any]) -> None:
        first = drawn("first", ("t", "h"), {"input": ["t", "h"]}, {})
        weights = [WIDE["weights"][0] | {"name": name} for name in ("left", "right", "more")]
        maps = [WIDE | {"name": each["name"], "reads": {"first": ["t", "h"]}, "weights": [each]} for each in weights]
        last = drawn("last", ("t",), {each["name"]: ["t", "f"] for each in maps}, {"f": 12}) | {"output": 48}
        worth_splitting([first, *maps, last], document)
        document["model"]["operators"]["drawn"] |= {"outputs": ["first", "last"]}
        over_nodes(document)
        without_samples(document)
        document["cluster"]["network"] = {"bandwidth": 10**8, "latency": 1}
        document["job"] |= {"depths": [1], "micro_batches": [4]}

    layouts = MeshProblem._sum_choices
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    passing_on(document := question(130))
    answer = ask(document)
    assert "'first': (-1, -2)" in str(answer["strategies"])
    assert not judge(document, answer, exact=False).faults
    monkeypatch.setattr(MeshProblem, "_sum_choices", wrong)
    assert "fastest strategies" in noticed(lambda document: True, passing_on, first=130)


def beside_a_residual(maps: int = 2) -> list[dict[str, Any]]:
    """Linear maps whose members may have columns, one with rows behind all of them, and a sum with what they read."""
    weight = WIDE["weights"][0]
    wide = [WIDE | {"name": f"wide {n}", "weights": [weight | {"name": f"wide {n}"}]} for n in range(maps)]
    narrow = drawn("narrow", ("t", "h"), {each["name"]: ["t", "f"] for each in wide}, {"f": 12}, ["h", "f"])
    return [*wide, narrow, drawn("add", ("t", "h"), {"input": ["t", "h"], "narrow": ["t", "h"]}, {})]


def drawn(name: str, makes: Any, reads: Any, loops: Any, weight: Any = ()) -> dict[str, Any]:
    """An operator, with or without a weight of these axes."""
    weights = [{"name": name, "loops": weight, "size": 48}] if weight else []
    sizes = {"output": 8 * 10**6, "kept": True, "forward_flops": 40 if len(weight) > 1 else 0}
    return {"name": name, "kind": "drawn", "loops": loops, "reads": reads, "makes": makes, "weights": weights} | sizes


WIDE = drawn("wide", ("t", "f"), {"input": ["t", "h"]}, {"f": 12}, ["f", "h"])
"""A linear map of which members may have columns."""


def of_operators(operators: list[Any], document: dict[str, Any]) -> None:
    """All layers have these operators, on teams of two."""
    on_teams(document)
    model = document["model"]
    model["operators"] = {"drawn": {"input": 8 * 10**6, "operators": operators}}
    model.pop("ties", None)
    for layer in model["layers"]:
        layer |= {"operators": "drawn", "parameters": sum(w["size"] for each in operators for w in each["weights"])}


def worth_splitting(operators: list[Any], document: dict[str, Any]) -> None:
    """The same with long passes; else whole operators, which exchange nothing, are mostly as fast."""
    of_operators(operators, document)
    take_long(document)


def test_losses_that_exchange_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that know the largest logit of each row, and the sum of exponentials, for nothing."""

    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(prices, "_loss_exchange", lambda *_: 0)
    assert noticed(has_loss, on_teams, first=129)


def test_losses_on_meshes_that_exchange_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on meshes; nothing is noticed before."""

    def on_a_mesh(document: dict[str, Any]) -> None:
        of_operators([WIDE], document)
        softmax = drawn("softmax", ("t", "f"), {"wide": ["t", "f"]}, {"f": 12})
        number = drawn("number", (), {"softmax": ["t", "f"]}, {"f": 12}) | {"output": 1}
        loss = {"operators": ["softmax", "number"], "rows": 10**6}
        model = document["model"]
        model["operators"]["head"] = {"input": 8, "operators": [WIDE, softmax, number], "loss": loss}
        model["layers"][-1]["operators"] = "head"
        over_nodes(document)
        document["job"]["micro_batches"] = [4]  # of one sample, so that none is split
        take_long(document)

    monkeypatch.setattr(questions, "TEAMS", 1.0)
    on_a_mesh(document := question(130))
    assert not judge(document, ask(document), exact=False).faults
    monkeypatch.setattr(import_module("pipeplan.costs.sharding.prices"), "_loss_exchange", lambda *given: 0)
    assert noticed(lambda document: True, on_a_mesh, first=130)


def test_losses_on_whole_logits_at_the_cost_of_parts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of a loss of which each is split as is fastest."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(OperatorGraph, "loss_names", ())
    assert noticed(has_loss, on_teams, first=129)


def has_loss(document: dict[str, Any]) -> bool:
    """Whether the loss may be split, with numbers for each row."""
    head = document["model"]["operators"].get("head", {})
    return bool(head.get("loss", {}).get("rows")) and document["job"].get("vocabulary_parallel", True)


@pytest.mark.slow
def test_masks_in_parts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what passes beside the tokens were split with them."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    wrong = lambda own, _: -(-own.layer.cost.output // strategies.share(own.output, own.mesh.sizes))  # noqa: E731
    monkeypatch.setattr(device_costs, "_output", wrong)
    assert noticed(lambda document: "mask" in str(document["model"]["operators"]), on_teams, first=148)


def has_tokens(graphs: Any) -> bool:
    """Whether operators may be split along tokens."""
    return any("token" in each["loops"] for graph in graphs for each in graph["operators"])


def test_teams_that_have_the_network_for_themselves_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if only one member of a team sent something to another node."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(Cluster, "between", lambda own, source, target: own.network)
    assert "the step takes" in noticed(lambda document: len(document["cluster"]["nodes"]) == 2, on_teams, first=129)


def take_long(document: dict[str, Any], **more: int) -> None:
    """Every pass of every layer takes a tenth of a second for a sample, and the update no time."""
    for profile in document["model"]["profiles"]:
        passes = dict.fromkeys(("forward", "input_gradient", "weight_gradient"), 10**8 * profile["micro_batch"])
        for costs in profile["costs"].values():
            costs |= passes | {"backward": 2 * passes["forward"], "update": 0} | more


def over_nodes(document: dict[str, Any]) -> None:
    """Teams of four on two nodes each, whose network is slow."""
    on_teams(document)
    cluster, kind = document["cluster"], min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 2, "link": {"bandwidth": 4 * 10**9}}
    cluster |= {"nodes": [dict(node) for _ in range(4)], "network": {"bandwidth": 10**9, "latency": 1}}
    document["job"] |= {"teams": [4], "depths": [2]}


def test_rings_that_never_leave_a_node_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if teams over several nodes had the links inside of them only."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(shapes_of_meshes, "slowest", lambda *links: links[0])
    assert noticed(lambda document: len(document["model"]["layers"]) > 1, over_nodes, first=2)


def test_teams_over_nodes_that_share_one_card_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all members of a team over two nodes used the same card."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(DeviceKind, "at_card", property(lambda own: own.team))
    found = noticed(lambda document: len(document["model"]["layers"]) > 1, over_nodes, first=37)
    assert "the step takes" in found or "fastest strategies" in found


def on_meshes(document: dict[str, Any]) -> bool:
    """Weights are split, and nothing is shared by layers, so that all strategies are compared."""
    model = document["model"]
    return len(model["layers"]) > 1 and not model.get("ties") and kept(document) > 8


def no_scatter(operator: Operator, strategy: Strategy) -> Placements:
    """As if no sums were needed where weights are split along inputs."""
    return tuple(max(entry, -1) for entry in strategies.made(operator, strategy))


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        rarely("shapes", "shared", lambda link, rings: link),
        ("problem", "made", no_scatter),
        rarely("problem", "share", lambda layout, sizes: 1),
        rarely("splits", "FAST", LEAN * 2),
    ],
)
def test_wrong_meshes_are_noticed(monkeypatch: pytest.MonkeyPatch, module: str, name: str, wrong: Any) -> None:
    """As if rings had a card each, sums were free, all was kept whole, and the fastest strategies were not searched."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(import_module(f"pipeplan.costs.sharding.{module}"), name, wrong)
    assert noticed(on_meshes, over_nodes, first=118)


def in_replicas_of_meshes(document: dict[str, Any]) -> None:
    """Two replicas of teams of four over two nodes, at level 3 of ZeRO."""
    over_nodes(document)
    document["job"] |= {"depths": [1], "replicas": [2], "micro_batches": [4], "zero": [3], "sequence_parallel": False}
    for kind in document["cluster"]["devices"].values():
        kind.pop("memory", None)


def test_meshes_whose_replicas_search_no_ways_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ways over several axes were not searched where gradients are shared out."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(import_module("pipeplan.costs.sharding.splits"), "mesh_ways", lambda *_: ())
    assert "fastest strategies" in noticed(on_meshes, in_replicas_of_meshes, first=33)


def test_meshes_whose_forwards_wait_for_no_gather_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the replicas of a mesh had all parameters when a forward begins."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(Passes, "_forward_waits", lambda own, *_: 0 * own.gather)
    assert "the step takes" in noticed(on_meshes, in_replicas_of_meshes)


def without_samples(document: dict[str, Any]) -> None:
    """Let other operators than those of the layers have an axis of samples, so that these have none."""
    image = drawn("image", ("sample", "f"), {"input": ["sample", "h"]}, {}, ["f", "h"])
    document["model"]["operators"]["images"] = {"input": 0, "operators": [image]}


def gathering(document: dict[str, Any]) -> None:
    """Teams of four on two nodes, with a large weight and larger activations, whose devices can keep parts of it only.

    There is one micro-batch, and to sum gradients of the weight along the network is slow.
    """
    weight = {"name": "wide", "loops": ["f", "h"], "size": 4 * 10**6}
    wide = drawn("wide", ("t", "f"), {"input": ["t", "h"]}, {"t": 12, "f": 12, "h": 12}) | {"weights": [weight]}
    wide |= dict.fromkeys(("forward_flops", "input_gradient_flops", "weight_gradient_flops"), 40)
    of_operators([wide], document)
    over_nodes(document)
    without_samples(document)
    room = 7 * 10**6 * len(document["model"]["layers"])  # weights and gradients take eight
    document["job"] |= {"depths": [1], "replicas": [1], "micro_batches": [1], "memory": room}
    take_long(document, saved=100, workspace=0)


def free_gathers(operator: Operator, strategy: Strategy, mesh: Mesh, gathers: bool) -> int:
    """As if weights were gathered in no time."""
    return 0 if gathers else EXCHANGE(operator, strategy, mesh, gathers)


EXCHANGE, ROOM = prices.weight_exchange, device_costs._at_once


@pytest.mark.parametrize(
    ("room", "name", "wrong"),
    [
        rarely(device_costs, "_at_once", lambda problem, strategies: 0),
        (device_costs, "_at_once", lambda problem, strategies: ROOM(problem, strategies) // 2),
        (prices, "weight_exchange", free_gathers),
    ],
)
def test_gathered_weights_that_take_no_room_or_time_are_noticed(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, wrong: Any
) -> None:
    """Nothing is noticed before, in a plan that gathers weights."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    gathering(document := question(147))
    answer = ask(document)
    assert any(
        any(each["gathers"])
        for strategies in answer["strategies"].values()
        for each in strategies["operators"].values()
    )
    assert not judge(document, answer, exact=False).faults
    monkeypatch.setattr(room, name, wrong)
    assert noticed(lambda document: True, gathering, first=147)


def attending(heads: int, keys: int, document: dict[str, Any]) -> None:
    """Attention whose tokens teams of four on two nodes can split, and a sum over them, so that none passes on."""
    own = drawn("attention", ("token", "f"), {"input": ["token", "f"]}, {"token": 12})
    figures = {"queries": 2 * 10**6, "keys": keys, "heads": heads, "causal": True}
    own |= {"attention": figures, "forward_flops": 40, "input_gradient_flops": 80}
    total = drawn("total", ("f",), {"attention": ["token", "f"]}, {"token": 12}) | {"output": 48}
    of_operators([own, total], document)
    over_nodes(document)
    without_samples(document)
    document["job"] |= {"depths": [1], "micro_batches": [1]}
    take_long(document)


def moving(document: dict[str, Any]) -> None:
    """A norm on parts of the tokens, attention behind it on parts of the heads, and a sum over these."""
    axes = ["token", "f"]
    norm = drawn("norm", axes, {"input": axes}, {"token": 12}) | {"forward_flops": 40, "input_gradient_flops": 80}
    own = drawn("attention", axes, {"norm": axes}, {"f": 12}) | {"forward_flops": 40, "input_gradient_flops": 80}
    own |= {"attention": {"queries": 2 * 10**6, "keys": 6 * 10**6}}
    total = drawn("total", ["token"], {"attention": axes}, {"f": 12}) | {"output": 48}
    of_operators([norm, own, total], document)
    over_nodes(document)
    without_samples(document)
    document["job"] |= {"depths": [1], "micro_batches": [1]}
    take_long(document)


def sharing_copies(document: dict[str, Any]) -> None:
    """A norm on parts of the tokens, and two maps that read all of it; devices have room for parts of weights."""
    axes = ["token", "h"]
    norm = drawn("norm", axes, {"input": axes}, {"token": 12}) | {"forward_flops": 40, "input_gradient_flops": 80}
    maps = [drawn(name, ["token", name], {"norm": axes}, {name: 12}, [name, "h"]) for name in ("left", "right")]
    for each in maps:
        each |= {"output": 48, "kept": False}
        each["weights"] = [{"name": each["name"], "loops": [each["name"], "h"], "size": 10**7}]
    last = drawn("last", ["z"], {"left": ["token", "left"], "right": ["token", "right"]}, {}) | {"output": 48}
    of_operators([norm, *maps, last], document)
    over_nodes(document)
    without_samples(document)
    room = 36 * 10**6 * len(document["model"]["layers"])
    document["job"] |= {"depths": [1], "replicas": [1], "micro_batches": [1], "memory": room}
    take_long(document, saved=100, workspace=0)


def in_halves(document: dict[str, Any]) -> None:
    """A map that moves again all tokens that it reads, behind a norm on parts of them, on two stages under any order.

    Backwards are in two parts, where a stage has the time.
    """
    axes = ["token", "h"]
    norm = drawn("norm", axes, {"input": axes}, {"token": 12}) | {"forward_flops": 40, "input_gradient_flops": 80}
    wide = drawn("wide", ["token", "f"], {"norm": axes}, {"f": 12}, ["f", "h"]) | {"output": 48}
    of_operators([norm, wide | {"input_gradient_flops": 40, "weight_gradient_flops": 40}], document)
    over_nodes(document)
    without_samples(document)
    document["job"] |= {"batch": 2, "micro_batches": [2], "replicas": [1], "schedules": ["any"]}
    take_long(document)


def beside_a_scale(document: dict[str, Any]) -> None:
    """The same with two maps that share a copy of all tokens, and a scale that reads the tensor too."""
    axes = ["token", "h"]
    norm = drawn("norm", axes, {"input": axes}, {"token": 12}) | {"forward_flops": 40, "input_gradient_flops": 80}
    maps = [drawn(name, ["token", name], {"norm": axes}, {name: 12}, [name, "h"]) for name in ("left", "right")]
    maps = [each | {"output": 48, "input_gradient_flops": 40, "weight_gradient_flops": 40} for each in maps]
    scale = drawn("scale", axes, {"norm": axes}, {"token": 12}, ["h"]) | {"input_gradient_flops": 40}
    reads = {name: ["token", name] for name in ("left", "right")} | {"scale": axes}
    of_operators([norm, *maps, scale, drawn("last", ["z"], reads, {}) | {"output": 48}], document)
    over_nodes(document)
    without_samples(document)
    document["job"] |= {"batch": 2, "micro_batches": [2], "replicas": [1], "schedules": ["any"]}
    take_long(document)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "has", "name", "wrong"),
    [(in_halves, "'token'", "waits", False), (beside_a_scale, "'readers'", "copied_for_inputs", False)],
)
def test_moves_again_in_the_other_half_of_a_backward_are_noticed(
    monkeypatch: pytest.MonkeyPatch, change: Any, has: str, name: str, wrong: bool
) -> None:
    """As if what weight gradients need were for input gradients, or the other way round; nothing is noticed before."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    change(document := question(1))
    answer = ask(document)
    assert has in str(answer["strategies"])
    assert "'W'" in str(answer["lists"])
    assert not judge(document, answer).faults
    monkeypatch.setattr(import_module(PROBLEM), name, lambda *_: wrong)
    assert noticed(lambda document: True, change)


def plain_ring(passes: list[int], *_: Any) -> list[int]:
    """As if keys that go round took no time."""
    return list(passes)


def free_copies(_: Any, copied: CopiedTensor) -> Any:
    """As if tensors were moved to their copies in no time."""
    return np.zeros((len(copied.states), len(COORDINATES)), np.int64)


def free_to_keep(own: MeshProblem, copied: CopiedTensor) -> Any:
    """As if copies that are kept took no room."""
    costs = COPY_COSTS(own, copied).copy()
    costs[:, COORDINATES.index("saved")] = 0
    return costs


def with_weights(_: OperatorGraph, operator: Operator) -> bool:
    """As if attention kept what was moved for it."""
    return bool(operator.weights)


def keeping(document: dict[str, Any]) -> None:
    """The same with any room: one copy is kept for the backward."""
    sharing_copies(document)
    document["job"].pop("memory")


COPY_COSTS = MeshProblem._copy_costs
RINGING, TURNING = partial(attending, 1, 6 * 10**6), partial(attending, 12, 6 * 10**6)
ATTENTION, PROBLEM = "pipeplan.costs.sharding.attention", "pipeplan.costs.sharding.problem"


@pytest.mark.parametrize(
    ("change", "has", "where", "name", "wrong"),
    [
        (RINGING, "'ring'", ATTENTION, "ring_passes", plain_ring),
        (RINGING, "'ring'", f"{ATTENTION}:SplitAttention", "beside", property(lambda own: 0)),
        (TURNING, "'heads'", f"{ATTENTION}:SplitAttention", "exchanges", lambda own: iter(())),
        (TURNING, "'heads'", f"{ATTENTION}:SplitAttention", "beside", property(lambda own: 0)),
        (sharing_copies, "'readers'", f"{PROBLEM}:MeshProblem", "_copy_costs", free_copies),
        (keeping, "'kept': True", f"{PROBLEM}:MeshProblem", "_copy_costs", free_to_keep),
        (
            sharing_copies,
            "'readers'",
            "pipeplan.costs.sharding.device_costs",
            "_copies_at",
            lambda problem, strategies: [],
        ),
        (moving, "'f'", PROBLEM, "moves_again", with_weights),
    ],
)
def test_attention_and_copies_that_take_nothing_are_noticed(
    monkeypatch: pytest.MonkeyPatch, change: Any, has: str, where: str, name: str, wrong: Any
) -> None:
    """Nothing is noticed before, in a plan whose strategies have them."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    change(document := question(130))
    answer = ask(document)
    assert has in str(answer["strategies"])
    assert not judge(document, answer, exact=False).faults
    module, _, owner = where.partition(":")
    target = import_module(module)
    monkeypatch.setattr(getattr(target, owner) if owner else target, name, wrong)
    assert noticed(lambda document: True, change, first=130)


def by_samples(document: dict[str, Any]) -> None:
    """Linear maps that nothing but samples can be split along, on teams of two in one node."""
    of_operators([drawn("map", ("sample", "f"), {"input": ["sample", "h"]}, {}, ["f", "h"])], document)
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 2, "link": {"bandwidth": 4 * 10**9}}
    document["cluster"] |= {"nodes": [node]}
    document["job"]["depths"] = [1]
    take_long(document)


SAMPLED = members.by_samples


@pytest.mark.parametrize(
    "wrong",
    [
        lambda graph, size, plain: SAMPLED(graph, 12 * size, plain),
        lambda graph, size, plain: SAMPLED(graph, 1, plain),
    ],
    ids=["more samples than there are", "one sample"],
)
def test_samples_that_are_miscounted_are_noticed(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Nothing is noticed before, in a plan that splits samples."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    by_samples(document := question(130))
    answer = ask(document)
    assert any(
        "sample" in each["loops"]
        for strategies in answer["strategies"].values()
        for each in strategies["operators"].values()
    )
    assert not judge(document, answer, exact=False).faults
    monkeypatch.setattr(members, "by_samples", wrong)
    assert noticed(lambda document: True, by_samples, first=130)


def has_groups(document: dict[str, Any]) -> bool:
    """Whether a layer has weights that may be split group by group."""
    graphs = document["model"]["operators"]
    return any("groups" in str(graphs.get(layer.get("operators"))) for layer in document["model"]["layers"])


def test_shared_weights_of_unlike_groups_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if layers that share a weight had the same part of it wherever they split the same axis."""
    ways = import_module("pipeplan.costs.sharding.ways")
    cuts = ways.shared_cuts
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(
        ways, "shared_cuts", lambda *of: tuple((getattr(axis, "axis", axis), part) for axis, part in cuts(*of))
    )
    assert "shared weights lie in unlike ways" in noticed(
        lambda document: bool(document["model"].get("ties")) and has_groups(document), on_teams, first=125
    )


def of_sharded_teams(document: dict[str, Any]) -> None:
    """Two replicas of teams of two share out all, over links that are slow."""
    on_teams(document)
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 4, "link": {"bandwidth": 10**8}}
    document["cluster"] |= {"nodes": [node], "network": None}
    document["job"] |= {"zero": [3], "replicas": [2], "depths": [1]}


def test_members_that_gather_the_whole_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each member of a team gathered what its team has, in place of its own part."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    of = Units.of
    monkeypatch.setattr(Units, "of", staticmethod(lambda sizes, tied: of(2 * sizes, tied)))
    assert "the step takes" in noticed(lambda document: not document["model"].get("ties"), of_sharded_teams, first=130)


def test_replicas_of_teams_that_keep_the_whole_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if teams shared out no more than the state of the optimiser."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    weights = Kept.weights
    monkeypatch.setattr(Kept, "weights", lambda own, kind, replicas: weights(own, kind, 1))
    assert "bytes" in noticed(lambda document: True, of_sharded_teams, first=130)


def of_unlike_sizes(document: dict[str, Any]) -> None:
    """Three devices of a node, one of them alone and two as a team at most; links between them are slow."""
    on_teams(document)
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 3, "link": {"bandwidth": 10**9}}
    document["cluster"] |= {"nodes": [node], "network": None}
    document["job"] = {
        "batch": 4,
        "zero": [0],
        "teams": [1, 2],
        "unlike_teams": True,
        "depths": [2],
        "replicas": [1],
        "recompute": "none",
    }
    document["job"] |= {"extrapolate": True}
    document["model"].pop("ties", None)


def test_teams_of_unlike_sizes_with_whole_parameters_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each member of a team had all parameters, where another stage has a single device."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(Model, "parameters_on", lambda own, kind: tuple(layer.parameters for layer in own.layers))
    assert "bytes" in noticed(lambda document: len(document["model"]["layers"]) > 1, of_unlike_sizes, first=130)


def several(document: dict[str, Any]) -> bool:
    """Several layers that share no weights."""
    return len(document["model"]["layers"]) > 1 and "ties" not in document["model"]


def just_large_enough(document: dict[str, Any]) -> None:
    """As much memory as the best plan takes on teams of unlike sizes."""
    of_unlike_sizes(document)
    for kind in document["cluster"]["devices"].values():
        kind.pop("memory", None)
    document["job"]["memory"] = max(ask(document).get("peaks", [2**30]))


def of_both_levels(document: dict[str, Any]) -> None:
    """Spacious, at levels 0 and 1 of ZeRO."""
    spacious(document)
    document["job"]["zero"] = [0, 1]


def test_plans_without_replicas_that_no_level_has_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the lowest level of ZeRO left them out, as the others do."""
    rows = space.Space.rows
    monkeypatch.setattr(
        space.Space,
        "rows",
        lambda own, size: (row for row in rows(own, size) if any(mode.replicas > 1 for mode in row)),
    )
    assert "above the optimum" in noticed(lambda _: True, of_both_levels, first=5)


def test_mixes_that_are_left_out_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all stages had teams of one size."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(import_module("pipeplan.solve.solving"), "mixed_nodes", lambda space: iter(()))
    assert "above the optimum" in noticed(several, of_unlike_sizes, first=130)


def test_rows_on_fewer_devices_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a stage of teams took all devices, so that rows of modes are missing."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    before = layouts.Layout.before
    monkeypatch.setattr(layouts.Layout, "before", lambda own, last: () if last and own.pooled else before(own, last))
    assert "above the optimum" in noticed(several, of_unlike_sizes, first=130)


def bounded_together(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """All mixes as one allocation problem, with something changed."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    problem = aggregate_problem._of_every_team
    monkeypatch.setattr(aggregate_problem, "_of_every_team", lambda *question: change(problem(*question)))


def test_bounds_of_mixes_that_count_devices_as_replicas_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a team of two were two replicas, before which twice as many micro-batches are in flight."""
    counts = AllocationTables._counts
    monkeypatch.setattr(
        AllocationTables, "_counts", lambda own, rule, behind, width: counts(own, rule, 2 * behind + width, width)
    )
    bounded_together(monkeypatch, lambda problem: problem)
    found = noticed(several, just_large_enough, first=105)
    assert "above the optimum" in found or "no plan fits" in found


def test_bounds_of_mixes_whose_sends_take_longest_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every transfer of a mix took twenty times as long."""
    bounded_together(
        monkeypatch, lambda problem: replace(problem, send=20 * problem.send, send_back=20 * problem.send_back)
    )
    assert "above the optimum" in noticed(several, of_unlike_sizes, first=2)


def test_bounds_of_mixes_with_the_times_of_whole_layers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if members of teams took as long as a device by itself."""
    bounded_together(
        monkeypatch,
        lambda problem: replace(
            problem,
            forward=np.broadcast_to(problem.forward.max(axis=0), problem.forward.shape),
            backward=np.broadcast_to(problem.backward.max(axis=0), problem.backward.shape),
        ),
    )
    assert "above the optimum" in noticed(several, of_unlike_sizes, first=130)


@pytest.mark.slow
def test_ways_that_are_joined_to_the_slowest_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if teams of one size took as long as in their slowest way, where none is chosen yet."""

    def slowest(problem: ChainAllocation, groups: Sequence[Sequence[int]]) -> ChainAllocation:
        rows = {
            name: np.stack([getattr(problem, name)[list(own)].max(axis=0) for own in groups])
            for name in ("forward", "backward")
        }
        return replace(joined(problem, groups), **rows)

    monkeypatch.setattr(aggregate_problem, "joined", slowest)
    bounded_together(monkeypatch, lambda problem: problem)
    assert "above the optimum" in noticed(several, of_unlike_sizes)


@pytest.mark.slow
def test_spaces_that_are_bounded_by_the_slowest_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all ways to split took as long as the slowest of them."""

    def slowest(problems: Sequence[ChainAllocation]) -> ChainAllocation:
        rows = {name: np.maximum.reduce([getattr(own, name) for own in problems]) for name in ("forward", "backward")}
        return replace(together(problems), **rows)

    monkeypatch.setattr(import_module("pipeplan.search.nodes.joined_spaces"), "together", slowest)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    for name in ("FEW", "PAIRS"):
        monkeypatch.setattr(space, name, 0)
    assert "above the optimum" in noticed(aggregated, in_equal_teams)


def test_ways_that_are_bounded_by_the_slowest_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each of several ways took twice as long as the last of them."""

    def slowest(models: Sequence[Model], size: int) -> Model:
        profiles = (replace(own, costs=tuple(map(twice, own.costs))) for own in models[-1].profiles)
        return replace(models[-1], profiles=tuple(profiles))

    def twice(cost: LayerCost) -> LayerCost:
        return replace(cost, forward=2 * cost.forward, backward=2 * cost.backward)

    monkeypatch.setattr(import_module("pipeplan.search.nodes.least_ways"), "least_model", slowest)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    assert "above the optimum" in noticed(aggregated, in_equal_teams, first=75)


def test_teams_of_which_no_plan_is_said_to_fit_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all ways together had none wherever there is no plan to beat."""

    def only_in_teams(document: dict[str, Any]) -> None:
        in_equal_teams(document)
        document["job"]["teams"] = [2]

    teams = import_module("pipeplan.search.nodes.teams")
    bound = teams.lower_bound
    monkeypatch.setattr(teams, "lower_bound", lambda *own: UNLIMITED if own[1].cutoff is None else bound(*own))
    assert "no plan fits, it says" in noticed(aggregated, only_in_teams)


def on_tokens(document: dict[str, Any], name: str) -> bool:
    """Whether products, or attention that reads and exchanges something, may run on parts of the tokens."""
    job, graphs = document["job"], document["model"]["operators"]
    allowed = job.get("sequence_parallel", True) and job.get("context_parallel", True)
    used = [graphs[layer["operators"]] for layer in document["model"]["layers"] if layer.get("operators")]
    found = [each for graph in used for each in graph["operators"] if each.get(name) and "token" in each["loops"]]
    return allowed and any(name == "product" or each[name]["keys"] > 1 for each in found)


def unheard(own: SplitAttention) -> Iterator[KeyExchange]:
    """As if members knew all keys and values."""
    return iter(())


def heard_once(own: SplitAttention) -> Iterator[KeyExchange]:
    """As if a backward kept what the forward had gathered."""
    return (each for each in EXCHANGES(own) if each[:2] != (Exchange.GATHER, True))


EXCHANGES = SplitAttention.exchanges


@pytest.mark.parametrize("wrong", [unheard, heard_once])
def test_attention_that_knows_all_keys_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Keys and values that no member sends, or none sends again."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(SplitAttention, "exchanges", wrong)
    assert noticed(lambda document: on_tokens(document, "attention"), on_teams, first=82)


def test_stages_on_parts_of_nodes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every group of devices were regular."""
    for where in ("device_groups", "placing", "outside"):
        monkeypatch.setattr(import_module(f"pipeplan.search.space.{where}"), "aligned", lambda cluster, groups: True)

    def wished(document: dict[str, Any]) -> None:
        document["job"] |= {"regular": True, "depths": [1], "replicas": [3], "micro_batches": [4], "batch": 4}
        for name in (
            "objective",
            "order",
            "pin",
            "intra_layer",
            "unlike_teams",
            "teams",
            "zero",
            "memory",
            "schedules",
        ):
            document["job"].pop(name, None)
        for entry in document["cluster"]["devices"].values():
            entry.pop("memory", None)

    assert "parts of several nodes" in noticed(several, wished, first=59)


@pytest.mark.parametrize(
    ("room", "name", "wrong"),
    [
        (import_module("pipeplan.costs.sharding.ring"), "messages", lambda team, back: ()),
        (SplitAttention, "beside", 0),
    ],
)
def test_keys_that_go_round_for_nothing_are_noticed(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, wrong: Any
) -> None:
    """As if blocks of keys took no time, or no memory."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(room, name, wrong)
    assert noticed(lambda document: on_tokens(document, "attention"), on_teams, first=82)


def test_last_queries_that_see_as_few_keys_as_the_first_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a causal mask left all members the same work."""
    passes = Rooflines.passes
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(Rooflines, "passes", lambda own, operator, parts, by_keys=1: passes(own, operator, parts))
    assert noticed(
        lambda document: on_tokens(document, "attention") and "'causal': True" in str(document), on_teams, first=33
    )


def without_context(document: dict[str, Any]) -> None:
    """Teams of two that gather their tokens for products and attention."""
    on_teams(document)
    document["job"]["context_parallel"] = False


def test_wishes_against_products_on_tokens_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over such splits although the question leaves them out."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)

    monkeypatch.setattr(import_module("pipeplan.costs.sharding.ways"), "_without_context", lambda *_: True)
    assert "against a wish" in noticed(lambda document: on_tokens(document, "product"), without_context, first=118)


def pinned(document: dict[str, Any]) -> bool:
    """Layers are pinned to devices, in any order of these, and nothing asks for teams."""
    job = document["job"]
    return "teams" not in job and "order" not in job and any(where.startswith("d") for _, where in job.get("pin", ()))


@pytest.mark.parametrize(("every", "first"), [(True, 2), (False, 291)])
def test_devices_that_are_taken_in_turn_whatever_is_pinned_are_noticed(
    monkeypatch: pytest.MonkeyPatch, every: bool, first: int
) -> None:
    """A planner that packs from the first device on refuses plans, or finds worse ones; so does one with one choice."""
    monkeypatch.setattr(questions, "PINNED", 1.0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))  # they are placed anew
    if every:
        place = placing.placements
        monkeypatch.setattr(Placing, "of", lambda own, modes: place(own.cluster, own.job, own.classes, modes))
    else:
        homes = Pins.homes
        monkeypatch.setattr(Pins, "homes", lambda *own: islice(homes(*own), 1))
    faults = noticed(pinned, spacious, first)
    assert "no plan fits, it says, but" in faults or "above the optimum" in faults


@pytest.mark.parametrize(
    ("share", "suits", "change", "first"),
    [
        (1.0, lambda document: pinned(document) and aggregated(document), spacious, 16),
        (0.0, aggregated, replicated, 30),
    ],
)
def test_nodes_that_are_searched_as_packed_although_any_will_do_are_noticed(
    monkeypatch: pytest.MonkeyPatch, share: float, suits: Any, change: Any, first: int
) -> None:
    """Pins on several nodes, and a network that is faster than the nodes, need placements that no packing has."""
    monkeypatch.setattr(questions, "PINNED", share)
    monkeypatch.setattr(space, "PLACEMENTS", 0)
    monkeypatch.setattr(searched, "PLACEMENTS", "other placements of devices")  # and it does not say so
    assert "above the optimum" in noticed(suits, change, first)


def test_regular_stages_without_idle_devices_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three replicas in each node of four: packed they are in both, with gaps they are not."""

    def regular(document: dict[str, Any]) -> None:
        kind = min(document["cluster"]["devices"])
        node = {"devices": [{"kind": kind, "count": 1}] * 3, "link": {"bandwidth": 10**9}}
        document["cluster"] |= {"nodes": [node, node], "network": {"bandwidth": 10**9, "latency": 0}}
        document["job"] = {"batch": 4, "regular": True, "replicas": [2], "depths": [2], "extrapolate": True}
        document["model"].pop("ties", None)

    monkeypatch.setattr(device_groups, "_within_nodes", lambda *_: None)
    monkeypatch.setattr("pipeplan.search.space.space.PLACEMENTS", 0)  # else every placement is listed
    alone = {"suits": lambda document: aggregated(document) and not document["model"].get("operators")}
    assert "no plan fits, it says, but" in noticed(**alone, change=regular, first=72)


def test_products_that_ignore_a_named_strategy_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every way to split products were the one that was asked for by name."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(questions, "NAMED", 1.0)
    monkeypatch.setattr(import_module("pipeplan.costs.sharding.signatures"), "following", lambda _, own, __: own)
    monkeypatch.setattr(import_module("pipeplan.costs.sharding.splits"), "follows", lambda *_: True)
    assert "products are not split by" in noticed(lambda document: document["job"].get("strategy"), first=111)


def test_whole_backwards_that_take_no_time_in_a_split_stage_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside layers whose backwards have two parts stand some of which these are not known."""
    document = question(591)
    costs = [cost for profile in document["model"]["profiles"] for cost in profile["costs"].values()]
    assert "any" in document["job"]["schedules"]
    assert any(cost["backward"] and not cost["input_gradient"] + cost["weight_gradient"] for cost in costs)
    assert not judge(document, ask(document)).faults
    monkeypatch.setattr(assembly, "_without_parts", lambda *_: 0)
    assert judge(document, ask(document)).faults


def late(document: dict[str, Any]) -> bool:
    """Gradients are one step late."""
    return document["job"].get("staleness") == 1


def in_two_stages(document: dict[str, Any]) -> None:
    """Two stages of two replicas whose sums take long, with one step of delay."""
    share_of_the_optimizer(document)
    names = [layer["name"] for layer in document["model"]["layers"]]
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 4, "link": {"bandwidth": 10**8}}
    document["cluster"] |= {"nodes": [node], "network": None, "overlap": True}
    document["job"] |= {"objective": "period", "staleness": 1, "batch": 4, "micro_batches": [4]}
    document["job"] |= {"depths": [min(2, len(names))], "recompute": "none"}
    document["solve"] |= {"gap": 0.0, "time_limit": 60.0}


def test_one_version_of_the_weights_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans with one step of delay keep two, and two buffers of gradients."""
    init = Kept.__init__
    monkeypatch.setattr(Kept, "__init__", lambda own, *rest: (init(own, *rest), setattr(own, "versions", 1))[0])
    assert "bytes" in noticed(late, first=44)


def test_sums_that_nobody_waits_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of late gradients behind the next batch, whether the sums have ended or not."""
    structure = import_module("pipeplan.simulate.structure")
    monkeypatch.setattr(structure, "OF_STEPS", {**structure.OF_STEPS, "U": ("I", "W")})
    assert "the plan's value is" in noticed(lambda document: True, in_two_stages, first=39)


def test_updates_at_another_place_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the next batch although gathers follow."""
    stale = import_module("pipeplan.schedules.stale")
    rolling = import_module("pipeplan.simulate.rolling")
    written = stale.through_batches
    monkeypatch.setattr(
        rolling,
        "through_batches",
        lambda schedule, batches, gathers: _with_gathers_late(written(schedule, batches), gathers),
    )
    assert "the plan's value is" in noticed(lambda document: True, in_two_stages, first=39)


def _with_gathers_late(schedule: Any, gathers: Sequence[int]) -> Any:
    """The lists of level 0, with gathers behind their updates."""
    update, gather = Kind.UPDATE, Kind.GATHER

    def row(order: Any) -> Any:
        for action in order:
            yield action
            if action.kind is update and action.stage in gathers:
                yield action._replace(kind=gather)

    return replace(schedule, orders=tuple(tuple(row(order)) for order in schedule.orders))
