"""Import of Piper's JSON workloads."""

from typing import Any

import pytest

from helpers.foreign_workloads import workload
from helpers.shared_data import shared
from pipeplan import load_cluster, load_model
from pipeplan.core.errors import InputError
from pipeplan.io.importers.piper import piper_from_data


def test_layers_times_and_devices() -> None:
    """The plain variant on one device becomes a layer; a third of its time is forward."""
    model, cluster = piper_from_data(workload(), "x", "tiny")
    assert model.names == ("0", "1", "2")
    assert [layer.kind for layer in model.layers] == ["embed", "middle", "head"]
    middle = model.profiles[0].costs[1]
    assert (middle.forward, middle.backward, middle.input_gradient) == (10**6, 2 * 10**6, 10**6)
    assert (middle.saved, middle.output, model.layers[1].parameters) == (7, 32, 100)
    assert model.profiles[0].costs[0].weight_gradient == 0
    assert (len(cluster.devices), cluster.devices[0].kind.memory) == (3, 10**9)
    assert cluster.nodes[0].link.bandwidth == 25 * 10**9
    assert any("left out of the model: 2 other variants" in note for note in model.notes)


def test_milliseconds_are_suspected_and_corrected() -> None:
    """Seconds a sample are announced as improbable; corrected reads them as milliseconds."""
    data = workload()
    data["nodes"][0]["TMPCs"]["1"][0]["timePerSample"] = 30.0
    model, _ = piper_from_data(data, "x", "tiny")
    assert any("probably milliseconds" in note for note in model.notes)
    model, _ = piper_from_data(data, "x", "tiny", corrected=True)
    assert model.profiles[0].costs[1].forward == 10**7


def test_unusual_fixed_memory_is_noted() -> None:
    """If the file's fixed memory is not twice the parameters, the notes state that ours is used."""
    data = workload()
    data["nodes"][2]["TMPCs"]["1"][0]["memoryUsageB"] = 5.0
    model, _ = piper_from_data(data, "x", "tiny")
    assert any("fixed memory of the layers 2 is not" in note for note in model.notes)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (
            lambda data: data["nodes"][0].update(TMPCs={"2": []}),
            r"nodes\[0\]\.TMPCs\.1: has no variant called 'vanilla'",
        ),
        (lambda data: data["edges"][0].update(destId=9), r"edges\[0\]\.destId: no node has the id 9"),
        (lambda data: data["nodes"][1].update(id=1), r"nodes\[1\]\.id: 1 stands twice"),
        (lambda data: data.update(bandwidth=0), "bandwidth: should be greater than 0"),
    ],
)
def test_what_is_wrong_is_named(break_it: Any, message: str) -> None:
    """Missing variants, unknown ends and bad numbers are named with their paths."""
    data = workload()
    break_it(data)
    with pytest.raises(InputError, match=message):
        piper_from_data(data, "x", "tiny")


def test_the_public_bert() -> None:
    """BERT-32 has 37 layers of 973 ms a sample in all, and devices of 80 GB."""
    path = shared("piper/bert32a100.json")
    model, cluster = load_model(path), load_cluster(path)
    assert len(model.layers) == 37
    total = sum(cost.forward + cost.backward for cost in model.profiles[0].costs)
    assert total / 1e6 == pytest.approx(972.864, rel=1e-5)
    assert cluster.devices[0].kind.memory == 80 * 10**9
    assert not any("milliseconds" in note for note in model.notes)
