"""Export of searched schedules: as torch's CSV, as text, as a picture."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.placed import placed
from pipeplan.core.pipeline import Pipeline, Placement, Stage
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.io.export.torch_csv import read_torch_csv, torch_csv_text, write_torch_csv
from pipeplan.report.plot.colours import STYLES
from pipeplan.schedules.family import FOUND
from pipeplan.schedules.placed import loop, vee
from pipeplan.search.scheduling import find_schedule
from pipeplan.simulate import simulate
from pipeplan_formulations.common.report import Limits

MICRO_BATCHES = 6


def _pipeline(placement: Placement) -> Pipeline:
    """Unequal stages, each with memory for two micro-batches."""
    stages = tuple(Stage(2 + s % 3, 6, 3 + s % 2, 3 - s % 2, update=1, held=1) for s in range(len(placement)))
    pipeline = placed(placement, stages, latency=1)
    chunks = len(placement) // pipeline.devices
    return replace(pipeline, limits=(2 * chunks,) * pipeline.devices)


def _found(placement: Placement) -> tuple[Schedule, Pipeline]:
    pipeline = _pipeline(placement)
    schedule = find_schedule(pipeline, MICRO_BATCHES, Limits(time=2, workers=1)).schedule
    assert schedule is not None
    assert schedule.family == FOUND
    return schedule, pipeline


@pytest.mark.parametrize("placement", [loop(3, 1), loop(3, 2), vee(3)])
def test_torch_accepts_a_found_schedule(placement: Placement, tmp_path: Path) -> None:
    """torch's own check passes, finds every stage on its rank, and the file read again is the same order."""
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule, pipeline = _found(placement)
    rows = torch_csv_text(schedule).splitlines()
    actions = {r: [torch._Action.from_str(cell) for cell in row.split(",")] for r, row in enumerate(rows)}
    homes = torch._validate_schedule(actions, pipeline.devices, len(placement), MICRO_BATCHES)
    assert homes == {stage: home for stage, (home,) in enumerate(placement)}
    write_torch_csv(schedule, tmp_path / "found.csv")
    again = read_torch_csv(tmp_path / "found.csv")
    for ours, theirs in zip(schedule.orders, again.orders, strict=True):
        assert [a for a in ours if a.kind.per_micro_batch] == [a for a in theirs if a.kind.per_micro_batch]


def test_a_found_schedule_is_read_back_from_text() -> None:
    """The text of plan files reads back to the same schedule."""
    schedule, _ = _found(vee(3))
    assert Schedule.from_text(schedule.family, schedule.as_text()) == schedule


def test_both_halves_of_a_backward_are_drawn_apart() -> None:
    """Input and weight gradients have boxes of their own colours; legend and lanes show idle time."""
    pytest.importorskip("matplotlib")
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_hex

    from pipeplan.report.plot.gantt import gantt_figure

    schedule, pipeline = _found(loop(3, 1))
    timeline = simulate(schedule, pipeline)
    assert any(timeline.busy(device) < timeline.makespan for device in range(pipeline.devices))
    figure = gantt_figure({"found": timeline})
    boxes = [drawn for drawn in figure.axes[0].collections if isinstance(drawn, PolyCollection)]
    colours = {to_hex(box.get_facecolor()[0]) for box in boxes}
    assert {STYLES[kind].fill for kind in (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)} <= colours
    assert STYLES[Kind.BACKWARD].fill not in colours
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"input gradient", "weight gradient", "idle"} <= labels
    assert sum("idle" in text.get_text() for text in figure.axes[0].texts) == pipeline.devices
