"""Mutations of single prices that the referee must notice."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from helpers.noticed import noticed
from pipeplan.costs import network
from pipeplan.costs.chain import SharedWeights
from pipeplan.costs.sharded import Passes, Units
from pipeplan.costs.sharding import shapes
from pipeplan.costs.synchronization import Synchronization
from pipeplan_formulations.common.layer_tables import Array, LayerTables
from referee import questions


def in_shards(document: dict[str, Any]) -> None:
    """Two replicas share out gradients, or all parameters, where a layer has none."""
    document["job"] = {"batch": 4, "zero": [2, 3], "replicas": [2], "extrapolate": True, "recompute": "none"}
    for kind in document["cluster"]["devices"].values():
        kind.pop("memory", None)


def some_are_bare(document: dict[str, Any]) -> bool:
    """Whether some layers have parameters and some have none."""
    return len({bool(layer["parameters"]) for layer in document["model"]["layers"]}) == 2


def test_layers_without_parameters_beside_no_buffers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if only layers with parameters ran beside what is gathered ahead, or has been summed."""
    with_buffers = Units.with_buffers

    def wrong(own: Units, workspace: Array, *rest: Any) -> Array:
        return np.where(own.reaching > 0, with_buffers(own, workspace, *rest), workspace)

    monkeypatch.setattr(Units, "with_buffers", wrong)
    assert "bytes" in noticed(some_are_bare, in_shards, first=102)


def tight(document: dict[str, Any]) -> None:
    """Little memory, so that some layers are recomputed."""
    in_shards(document)
    document["job"] |= {"recompute": "choose", "micro_batches": [2]}
    resident = sum(2 * layer["parameters"] for layer in document["model"]["layers"])
    saved = max(sum(cost["saved"] for cost in profile["costs"].values()) for profile in document["model"]["profiles"])
    document["job"]["memory"] = 2 * resident + saved


def test_saved_bytes_beside_the_sum_of_gradients_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a recomputed layer had its saved bytes until its gradients are summed."""
    monkeypatch.setattr(LayerTables, "again", property(lambda own: own.saved + own.workspace))
    assert noticed(lambda document: True, tight, first=2)


def test_latencies_that_slow_computation_down_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a unit computed more slowly beside the latencies of its neighbours' collectives too."""

    def slowed(document: dict[str, Any]) -> None:
        in_shards(document)
        document["cluster"]["overlap"] = True
        for kind in document["cluster"]["devices"].values():
            kind["speed_beside_collectives"] = 0.5
        for node in document["cluster"]["nodes"]:
            node["link"] |= {"latency": 8, "unit_overhead": 4, "unit_overlap": True}

    passes = Synchronization.passes

    def wrong(*question: Any) -> Passes:
        own = passes(*question)
        assert own is not None
        return Passes(own.forward, own.backward, own.gather, own.gather_again, own.reduce, own.every, own.speed)

    monkeypatch.setattr(Synchronization, "passes", wrong)
    assert "the step takes" in noticed(lambda document: not document["model"].get("ties"), slowed, first=9)


def tied_over_kinds(document: dict[str, Any]) -> bool:
    """Two kinds of device, and layers that share weights."""
    return len(document["cluster"]["devices"]) == 2 and "ties" in document["model"]


def unlike_beside_sums(document: dict[str, Any]) -> None:
    """One kind computes more slowly beside collectives."""
    document["job"] = {"batch": 4, "zero": [0], "order": "given", "depths": [2], "extrapolate": True}
    document["cluster"]["overlap"] = True
    for speed, kind in zip((1.0, 0.25), document["cluster"]["devices"].values(), strict=True):
        kind |= {"speed_beside_collectives": speed}
        kind.pop("memory", None)


def test_homes_at_the_speed_of_the_slowest_kind_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all stages lost beside their sums what the kind of another stage loses."""
    speed = Synchronization._speed_at_ends
    monkeypatch.setattr(
        Synchronization,
        "_speed_at_ends",
        lambda own, _: min(speed(own, kind) for kind in own.tables.cluster.kinds.values()),
    )
    assert noticed(tied_over_kinds, unlike_beside_sums, first=157)


def on_a_fast_network(document: dict[str, Any]) -> None:
    """Two nodes of two devices with slow links, all of them replicas."""
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 2, "link": {"bandwidth": 10**8}}
    document["cluster"] |= {"nodes": [node, node], "network": {"bandwidth": 4 * 10**9}}
    document["job"] = {"batch": 4, "zero": [0], "replicas": [4], "recompute": "none", "extrapolate": True}
    for entry in document["cluster"]["devices"].values():
        entry.pop("memory", None)


def test_rings_without_the_links_inside_nodes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if replicas in a node did not send to each other."""
    monkeypatch.setattr(network, "slowest", lambda *links: links[0])
    assert "the step takes" in noticed(lambda document: True, on_a_fast_network, first=12)


def meshes_on_a_fast_network(document: dict[str, Any]) -> None:
    """Teams of four over two nodes with slow links, on meshes."""
    on_a_fast_network(document)
    document["job"] = {"batch": 4, "teams": [4], "zero": [0], "recompute": "none", "extrapolate": True}


def test_axes_without_the_links_inside_nodes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if rings along an axis over nodes passed the network only."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    monkeypatch.setattr(shapes, "slowest", lambda *links: links[-1])
    assert noticed(lambda document: not document["model"].get("ties"), meshes_on_a_fast_network, first=91)


def large_shares(document: dict[str, Any]) -> None:
    """Two replicas share out a layer of a few million numbers."""
    in_shards(document)
    document["model"]["layers"][0]["parameters"] += 8 * 3 * 2**20
    document["job"] |= {"depths": [1]}


def test_shares_that_arrive_in_smaller_parts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if others sent half as many numbers at once."""
    monkeypatch.setattr(import_module("pipeplan.costs.kept"), "AT_ONCE", 2**19)
    assert "bytes" in noticed(lambda document: not document["model"].get("ties"), large_shares, first=39)


def with_two_ties(document: dict[str, Any]) -> None:
    """Three stages in order: the middle one has a copy of a weight, and the home of another one."""
    names = [layer["name"] for layer in document["model"]["layers"]]
    for layer in document["model"]["layers"][:2]:
        layer["parameters"] += 80
    document["model"]["ties"] = [{"layers": names[:2], "parameters": 80}, {"layers": names[1:3], "parameters": 80}]
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 5, "link": {"bandwidth": 10**9}}
    document["cluster"] |= {"nodes": [node], "network": None, "overlap": True}
    document["job"] = {"batch": 2, "zero": [0], "depths": [3], "order": "given", "extrapolate": True}
    document["job"] |= {"recompute": "none"}
    for entry in document["cluster"]["devices"].values():
        entry.pop("memory", None)


def test_second_ties_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a stage summed nothing for a copy beside its own weights that others copy."""
    copied = SharedWeights.copied
    monkeypatch.setattr(SharedWeights, "copied", lambda own, a, b: own.layers[0] == 0 and copied(own, a, b))
    assert noticed(lambda document: len(document["model"]["layers"]) == 3, with_two_ties, first=63)
