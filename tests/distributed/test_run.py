"""Plans on real processes: exact gradients, and an end within the stated time whatever happens."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # spawned ranks import the workers by the same name
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])

import workers

from pipeplan.errors import PlanError
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan_executor import RunError, launch, run
from plans import plan_for

EXACT = 1e-10


@pytest.mark.parametrize("world", [2, 3])
def test_every_family_is_exact(world: int) -> None:
    """Loss and gradients equal the unsplit model's in float64, for every family on three kinds of model."""
    errors = launch(workers.families, world, 4, timeout=60)
    assert len(errors) == len(FAMILIES) * len(workers.WORKLOADS)
    assert all(error <= EXACT for error in errors.values()), errors


def test_any_valid_order_is_exact() -> None:
    """Random orders with split backwards and several stages a rank give the same gradients."""
    errors = launch(workers.random_orders, 2, 24, timeout=60)
    assert len(errors) == 24
    assert all(error <= EXACT for error in errors.values()), errors


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_follows_the_unsplit_model(optimizer: str) -> None:
    """Over several steps with an optimiser, losses stay those of the unsplit model."""
    ours, theirs = launch(workers.training, 2, 4, optimizer, timeout=60)
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert theirs[0] != theirs[-1]


def test_a_run_reports_what_happened() -> None:
    """``run`` gives losses, times, peaks, every action on the time line, and exact gradients."""
    workload = workers.tiny_mlp()
    names = workers.layers_of(workload)
    schedule = FAMILIES["gpipe"].write((1, 1), 3)
    plan = plan_for(workload.module, names, (0, 1, len(names)), schedule)
    report = run(plan, workers.tiny_mlp, steps=2, warmup=1, verify=True, timeout=60)
    assert report.error is not None
    assert report.error <= EXACT
    assert len(report.losses) == len(report.step_times) == 2
    assert all(peak > 0 for peak in report.peaks)
    assert {span.action for span in report.timeline.spans} == set(schedule.actions())


@pytest.mark.parametrize(("how", "said"), [("raise", "the data ran out"), ("kill", "SIGKILL"), ("stop", "stood still")])
def test_a_lost_rank_ends_the_run_and_is_named(how: str, said: str) -> None:
    """A rank that raises, dies or stops ends the run within the timeout; one error names it and its cause."""
    timeout, start = 8.0, time.monotonic()
    with pytest.raises(RunError, match=f"rank 1.*{said}"):
        launch(workers.misbehaving, 2, how, 1, timeout=timeout)
    assert time.monotonic() - start < timeout + 40  # start-up of the ranks included


def test_a_wrong_world_size_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a launcher that started another number of processes, the error says both numbers."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RunError, match=r"2 ranks.*3 processes"):
        launch(workers.misbehaving, 2, "raise", 0)


def test_a_broken_plan_never_starts() -> None:
    """A schedule that would deadlock is refused before a process is started."""
    f, b = Kind.FORWARD, Kind.BACKWARD
    broken = Schedule("broken", ((Action(f, 0), Action(b, 0)), (Action(b, 1), Action(f, 1))))
    workload = workers.tiny_mlp()
    names = workers.layers_of(workload)
    with pytest.raises(PlanError, match="1B0"):
        run(plan_for(workload.module, names, (0, 1, len(names)), broken), workers.tiny_mlp)


def test_a_plan_for_another_model_never_starts() -> None:
    """Names that are missing, or a fingerprint that differs, are refused with advice."""
    workload = workers.tiny_mlp()
    names = workers.layers_of(workload)
    plan = plan_for(workload.module, names, (0, 1, len(names)), FAMILIES["gpipe"].write((1, 1), 2))
    with pytest.raises(PlanError, match="does not belong"):
        run(plan, workers.tiny_vgg)
    with pytest.raises(PlanError, match="another"):
        run(replace(plan, fingerprint="0" * 16), workers.tiny_mlp)
