"""Plans in the formats of other tools."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import fat_head
from pipeplan.analysis.judge import judge
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.io.export import EXPORTS, exported
from pipeplan.io.export.torch_csv import schedule_from_torch_csv


def _plan(replicas: tuple[int, ...]) -> Plan:
    """Layers 4 + 5 of the fat-headed chain on two stages."""
    cluster = Cluster.uniform(3, DeviceKind("unit"))
    return judge(fat_head(), cluster, 8, stages=(4, 5), replicas=replicas, micro_batches=4, time_limit=1).plan


def test_layers_by_device_and_by_stage() -> None:
    """Every layer has its device, or the devices of its replicas; stages have their layers in order."""
    plan = _plan((1, 2))
    devices = json.loads(exported(plan, "device-map"))
    assert devices == {f"l{i}": 0 for i in range(4)} | {f"l{i}": [1, 2] for i in range(4, 9)}
    assert json.loads(exported(plan, "stages")) == [[f"l{i}" for i in range(4)], [f"l{i}" for i in range(4, 9)]]


def test_torch_reads_the_schedule_and_refuses_replicas() -> None:
    """The actions come back in order; a stage on two ranks cannot be written."""
    plan = _plan((1, 1))
    back = schedule_from_torch_csv(exported(plan, "torch-csv"), "x")
    assert back.as_text() == plan.schedule.as_text()
    with pytest.raises(InputError, match="every stage to one rank, and stage 1 runs on 2"):
        exported(_plan((1, 2)), "torch-csv")


def test_what_formats_cannot_express_is_refused() -> None:
    """Teams and parts of layers have no place in a device map."""
    plan = _plan((1, 1))
    team = replace(plan, stages=(replace(plan.stages[0], team=2), plan.stages[1]))
    with pytest.raises(InputError, match="are teams that split layers"):
        exported(team, "device-map")
    shared = replace(plan, stages=(replace(plan.stages[0], shares=(("l3", 0.5),)), plan.stages[1]))
    for name in ("device-map", "stages"):
        with pytest.raises(InputError, match="holds a part of layer 'l3'"):
            exported(shared, name)
    with pytest.raises(InputError, match="no export is called 'stage'; did you mean 'stages'"):
        exported(plan, "stage")


@pytest.mark.parametrize("name", EXPORTS)
def test_the_command_prints_or_writes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file the text is printed, with one it is written there; both are the same."""
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    _plan((1, 1)).save(plan)
    assert main(["export", str(plan), "--to", name]) == 0
    printed = capsys.readouterr().out
    assert main(["export", str(plan), "--to", name, "-o", str(out)]) == 0
    assert out.read_text() == printed == exported(Plan.load(plan), name)
