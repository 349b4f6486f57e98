"""Import of dnn-partitioning's JSON workloads: colours, forward and backward pairs, units, devices."""

from typing import Any

import pytest

from helpers.foreign_workloads import RATE, edge, node, training
from helpers.shared_data import shared
from pipeplan import load_cluster, load_model
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.io.importers.dnn_partitioning import dnn_partitioning_from_data


def test_a_layer_is_a_colour_with_its_mates() -> None:
    """Operators of one colour are one layer, forward and backward apart; names are the forward ids."""
    model, _ = dnn_partitioning_from_data(training(), "x", "tiny")
    assert model.names == ("1", "2+3", "5")
    assert [(cost.forward, cost.backward) for cost in model.profiles[0].costs] == [
        (1_500_000, 5_000_000),
        (5_000_000, 6_000_000),
        (0, 500_000),
    ]


def test_a_backward_only_layer_comes_behind_what_it_serves() -> None:
    """The loss reads the last operator, and what reads its gradient lies before it."""
    model, _ = dnn_partitioning_from_data(training(), "x", "tiny")
    assert [layer.inputs for layer in model.layers] == [(), ("1",), ("2+3",)]


def test_outputs_are_what_leaves_a_layer() -> None:
    """The tensor between two operators of one layer does not count."""
    model, _ = dnn_partitioning_from_data(training(), "x", "tiny")
    assert [cost.output for cost in model.profiles[0].costs] == [4_000_000, 2_000_000, 0]


def test_memory_is_the_sum_of_sizes() -> None:
    """Parameters and as many gradients take what the file's sizes add up to; nothing grows with what is in flight."""
    model, _ = dnn_partitioning_from_data(training(), "x", "tiny")
    assert [2 * layer.parameters for layer in model.layers] == [20, 30, 10]
    assert all(cost.saved == 0 for cost in model.profiles[0].costs)


def test_the_devices_it_carries() -> None:
    """So many accelerators with their memory, on links as fast as the edges' costs say; processors are noted."""
    model, cluster = dnn_partitioning_from_data(training(), "x", "tiny")
    assert len(cluster.devices) == 4
    assert cluster.devices[0].kind.name == model.profiles[0].device
    assert cluster.devices[0].kind.memory == 1000
    assert cluster.nodes[0].link.bandwidth == RATE
    assert cluster.overlap is Overlap.NONE
    assert any("1 slow processor" in note for note in model.notes)


def test_the_unit_trap_is_announced_and_corrected() -> None:
    """Links a thousand times too fast are read as written, with a warning, or corrected on request."""
    data = training()
    for way in data["edges"]:
        way["cost"] /= 1000
    model, cluster = dnn_partitioning_from_data(data, "x", "tiny")
    assert cluster.nodes[0].link.bandwidth == 1000 * RATE
    assert any("a slip of units" in note for note in model.notes)
    corrected, cluster = dnn_partitioning_from_data(data, "x", "tiny", corrected=True)
    assert cluster.nodes[0].link.bandwidth == RATE
    assert not any("a slip of units" in note for note in corrected.notes)
    sound, _ = dnn_partitioning_from_data(training(), "x", "tiny")
    assert not any("a slip of units" in note for note in sound.notes)


def test_colours_in_a_circle_are_fused() -> None:
    """Two colours that depend on each other must share a device."""
    data = {
        "maxFPGAs": 2, "maxSizePerFPGA": 100,
        "nodes": [node(1, 1, color=1), node(2, 1, color=2), node(3, 1, color=1), node(4, 1)],
        "edges": [edge(1, 2, 1e6), edge(2, 3, 1e6), edge(3, 4, 1e6)],
    }  # fmt: skip
    model, _ = dnn_partitioning_from_data(data, "x", "tiny")
    assert model.names == ("1+2+3", "4")


def test_mates_are_found_by_name_where_there_is_no_colour() -> None:
    """op1grad goes with op1."""
    mates = [node(3, 4, backward=True, name="op1grad"), node(4, 5, backward=True, name="op2grad")]
    data = {"maxFPGAs": 2, "maxSizePerFPGA": 100, "edges": [edge(1, 2, 1e6)], "nodes": [node(1, 1), node(2, 1), *mates]}
    model, _ = dnn_partitioning_from_data(data, "x", "tiny")
    assert model.names == ("1", "2")
    assert [cost.backward for cost in model.profiles[0].costs] == [4_000_000, 5_000_000]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": []}, "nodes"),
        ({"maxFPGAs": 0}, "maxFPGAs: should be greater than or equal to 1"),
        ({"edges": [edge(1, 99, 1)]}, r"edges\[0\]\.destId: no node has the id 99"),
        ({"nodes": [node(1, 1), node(1, 2)], "edges": []}, "the ids 1 stand twice"),
        ({"nodes": [node(1, 1, supportedOnFpga=0)], "edges": []}, "no accelerator supports op1"),
        (
            {"nodes": [{"id": 1}], "edges": []},
            r"(?s)nodes\[0\]\.fpgaLatency: missing.*nodes\[0\]\.isBackwardNode: missing",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    """Fields, ids and unsupported operators are named."""
    with pytest.raises(InputError, match=message):
        dnn_partitioning_from_data(training() | change, "x", "tiny")


@pytest.mark.parametrize(
    ("name", "layers", "forward", "backward", "trapped"),
    [
        ("bert24_training", 32, 92.406, 125.407, True),
        ("gnmt_training", 96, 182.563, 337.890, True),
        ("resnet50_training", 177, 201.450, 260.931, True),
        ("bert_l-3_inference", 128, 49.3526, 0, False),
        ("bert_l-3_training", 138, 49.3526, 73.6346, False),
    ],
)
def test_public_workloads(name: str, layers: int, forward: float, backward: float, trapped: bool) -> None:
    """Groups and times are the known ones, and the layer graphs' slip of units is announced."""
    path = shared(f"dnn-partitioning/{name}.json")
    model, cluster = load_model(path), load_cluster(path)
    costs = model.profiles[0].costs
    assert len(model.layers) == layers
    assert sum(cost.forward for cost in costs) / 1e6 == pytest.approx(forward, rel=1e-5)
    assert sum(cost.backward for cost in costs) / 1e6 == pytest.approx(backward, rel=1e-5)
    assert any("a slip of units" in note for note in model.notes) == trapped
    assert len(cluster.devices) == (3 if name.startswith("bert_l") else 6)
