"""Schedules written by torch's own classes: dumped by torch, loaded and simulated."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.placed import equal_stages
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate import validate_schedule
from pipeplan.io.export.torch_csv import read_torch_csv, schedule_from_torch_csv, torch_csv_text
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.simulate import simulate

pytest.importorskip("torch.distributed.pipelining.schedules")

OURS = {
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "looped-bfs",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
    "InterleavedZeroBubble": None,
}
SIZES = [(2, 4), (3, 6), (4, 8), (4, 13), (5, 15)]


def dumped(name: str, devices: int, micro_batches: int, path: Path, form: str) -> None:
    """The dump of ``Schedule<name>``, with two stages per rank."""
    from torch.distributed.pipelining import schedules
    from torch.nn import Identity

    shared = {"group_size": devices, "group_rank": 0, "num_stages": 2 * devices, "is_last": False}
    stages: list[Any] = [SimpleNamespace(submod=Identity(), **shared) for _ in range(2)]
    schedule = getattr(schedules, f"Schedule{name}")(stages, micro_batches)
    schedule._dump_csv(path, form)


def computed(schedule: Schedule) -> list[list[str]]:
    """The lists without what ends a step."""
    return [[str(action) for action in order if action.kind.per_micro_batch] for order in schedule.orders]


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(("devices", "micro_batches"), SIZES)
@pytest.mark.parametrize("name", OURS)
def test_what_torch_dumps_runs_in_torchs_order(
    name: str, devices: int, micro_batches: int, form: str, tmp_path: Path
) -> None:
    """Loaded from either form, every rank runs its row in order, and every action comes after what it needs."""
    if name.startswith("Interleaved") and micro_batches == 13:
        micro_batches = 12  # torch wants equal rounds
    dumped(name, devices, micro_batches, tmp_path / "s.csv", form)
    schedule = read_torch_csv(tmp_path / "s.csv")
    validate_schedule(schedule, 2 * devices, micro_batches)
    timeline = simulate(schedule, equal_stages(schedule.homes, 1, 1, 1))
    for device, row in enumerate((tmp_path / "s.csv").read_text().splitlines()):
        ran = [str(s.action) for s in timeline.spans if s.device == device and s.action.kind is not Kind.UPDATE]
        cells = row.replace("(", "").replace(")OVERLAP_F_B", "").replace(";", ",").split(",")
        assert ran == [cell for cell in cells if cell[-1:].isdigit() and "SEND" not in cell and "RECV" not in cell]


@pytest.mark.parametrize(("devices", "micro_batches"), SIZES)
@pytest.mark.parametrize("name", [name for name, ours in OURS.items() if ours])
def test_our_families_are_torchs(name: str, devices: int, micro_batches: int, tmp_path: Path) -> None:
    """Action for action; but that torch's looped BFS runs its backwards the other way round."""
    if name.startswith("Interleaved") and micro_batches == 13:
        micro_batches = 12
    dumped(name, devices, micro_batches, tmp_path / "s.csv", "compute_only")
    theirs = computed(read_torch_csv(tmp_path / "s.csv"))
    ours = PLACED[str(OURS[name])].write(devices, micro_batches)
    if name == "LoopedBFS":
        turned = tuple(
            tuple(
                a._replace(micro_batch=micro_batches - 1 - a.micro_batch) if a.kind is Kind.BACKWARD else a for a in o
            )
            for o in ours.orders
        )
        ours = Schedule(ours.family, turned)
    assert computed(ours) == theirs


def turned(action: Action, micro_batches: int) -> Action:
    """Backwards of the last micro-batch first."""
    backward = action.kind is Kind.BACKWARD
    return action._replace(micro_batch=micro_batches - 1 - action.micro_batch) if backward else action


@pytest.mark.parametrize(("name", "ours", "ranks"), [("GPipe", "gpipe", 4), ("1F1B", "1f1b-sno", 3)])
def test_schedules_with_one_stage_a_rank_are_torchs(name: str, ours: str, ranks: int) -> None:
    """GPipe and 1F1B too, which torch lists but does not dump (and 1F1B's last rank it lists wrongly: from 3F1 on)."""
    from torch.distributed.pipelining import schedules

    stage: Any = SimpleNamespace(group_size=4, group_rank=0, num_stages=4, is_last=False)
    orders = getattr(schedules, f"Schedule{name}")(stage, 6)._get_pipeline_order()
    text = "\n".join(",".join("" if a is None else str(a) for a in orders[rank]) for rank in range(4))
    loaded = schedule_from_torch_csv(text, "torch")
    assert loaded.orders[:ranks] == FAMILIES[ours].write((1,) * 4, 6).orders[:ranks]


@pytest.mark.parametrize("name", [name for name in PLACED if name != "chimera"])
def test_torch_accepts_what_we_write(name: str, tmp_path: Path) -> None:
    """torch's own check of a schedule passes, and finds every stage on the rank that the family says."""
    from torch.distributed.pipelining import schedules

    schedule, placement = PLACED[name].write(4, 9), PLACED[name].placement(4)
    rows = torch_csv_text(schedule).splitlines()
    actions = {r: [schedules._Action.from_str(cell) for cell in row.split(",")] for r, row in enumerate(rows)}
    found = schedules._validate_schedule(actions, 4, len(placement), 9)
    assert found == {stage: home for stage, (home,) in enumerate(placement)}
