"""``pipeplan demo``: what it says of its two answers."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan_executor.cli import demo_run
from pipeplan_executor.train.verdict import Verdict

MIB = 2**20


def _measured(_name: str, _batch: int) -> tuple[Cluster, Model]:
    """A chain whose weights are half of what a device with all of them holds, and two devices with memory to spare."""
    cluster = equal_devices(2, memory=1000 * MIB, link=Link(bandwidth=10**12, latency=1000))
    return cluster, model_of([10_000_000] * 4, parameters=[4 * MIB] * 4, saved=[4 * MIB] * 4)


def _ran(plan: Plan, *_: object, **__: object) -> SimpleNamespace:
    """A run that measured what was predicted."""
    return SimpleNamespace(
        step_time=plan.step_time,
        peaks=(1, 2),
        error=1e-15,
        timeline=demo_run.Timeline((), (), (), ()),
        verdict=Verdict(1e-15, 1e-10, None, "float64"),
        off=lambda _: "+0.0%",
    )


def test_it_shows_both_answers_on_one_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data parallelism where memory suffices, a pipeline where it does not, heuristics and files; at most 40 lines."""
    monkeypatch.setattr(demo_run, "_measured", _measured)
    monkeypatch.setattr(demo_run, "run", _ran)
    demo_run.demonstrate(tmp_path, "decoder", 8, 3)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 110
    spare, short = text.split("2. Memory short")
    assert "Answer: overlapped data parallelism" in spare
    assert "(gap 0.00%" in spare
    assert "Answer: a pipeline of 2 stages" in short
    assert "does not fit" in short
    assert "data-parallel" in short.split("does not fit")[1]
    plans = [Plan.load(tmp_path / name) for name in ("spare.json", "short.json")]
    assert [len(plan.stages) for plan in plans] == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} >= {"demo.svg", "demo.html", "cluster.yaml", "decoder.yaml"}
