"""Models whose layers take no time: the answer is 0 ns, without throughput."""

from pathlib import Path

import pytest

import pipeplan
from helpers.instances import equal_devices
from helpers.quick import rarely
from pipeplan import Layer, LayerCost, Model, Profile, Provenance, Work
from pipeplan.cli.main import main
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model

LAYERS = tuple(Layer(name, 2**20, work=Work(0, 0, 0, 2**20, 2**20)) for name in "ab")


def idle() -> Model:
    """Two layers with a profile of no time at all."""
    (kind,) = equal_devices(2).kinds
    costs = (LayerCost(0, 0, 0, 0, 2**20, 2**20),) * 2
    profile = Profile(kind, 1, costs, Provenance("measured", "a stopped clock"))
    return Model("idle", LAYERS, (profile,))


def test_no_time_is_an_answer() -> None:
    """Value and bound are 0, the gap too; the throughput is not known."""
    result = pipeplan.solve(idle(), equal_devices(2), 8, optimizer="sgd", time_limit=3)
    assert (result.value, result.bound, result.gap) == (0, 0, 0)
    assert "throughput unlimited" in str(result)
    assert result.as_json()["step_time_s"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["solve", "--plot", "plan.svg", "-o", "plan.json"],
        ["compare"],
        rarely(["frontier"]),
        rarely(["frontier", "--over", "devices"]),
        rarely(["explain", "--each", "1"]),
        ["judge", "--stages", "1,1", "--micro-batches", "8"],
        rarely(["solve", "--robust", "5%"]),
        rarely(["solve", "--objective", "period"]),
        rarely(["solve", "--objective", "bottleneck"]),
        rarely(["solve", "--schedules", "any", "--json"]),
        rarely(["solve", "--regular"]),
    ],
    ids=" ".join,
)
def test_every_command_answers(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command divides by a time of zero."""
    monkeypatch.chdir(tmp_path)
    write_model(idle(), Path("model.yaml"))
    write_cluster(equal_devices(2), Path("cluster.yaml"))
    command, *options = words
    assert main([command, "model.yaml", "cluster.yaml", "--batch", "8", "--time", "3", *options]) == 0
    if "plan.json" in options:
        assert main(["simulate", "plan.json", "--trace", "plan.trace"]) == 0
