"""Labels of plans and texts of unexpected errors in records."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import equal_devices, fat_head
from pipeplan.analysis.sweep.cells import Cell, Question
from pipeplan.analysis.sweep.experiment import NamedModel, Search
from pipeplan.analysis.sweep.work import plan_label, record
from pipeplan.core.errors import UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.machine import this_machine
from pipeplan.core.plan import Plan
from pipeplan.solve import solve

CELL = Cell(NamedModel("head"), "box", Job(8))


def test_a_plan_is_named_by_its_widths() -> None:
    """The devices of every stage, micro-batches, schedule, and how many layers are recomputed."""
    plan = solve(fat_head(), equal_devices(2), job=Job(8, depths=(2,), replicas=(1,)), backend="exact").plan
    first, second = plan.stages
    tail = f"{plan.micro_batches} micro-batches of {plan.micro_batch}, {plan.schedule.family}"
    assert plan_label(plan) == f"2 stages, {tail}"
    wide = replace(plan, stages=(replace(first, devices=(0, 2, 3)), replace(second, recompute=second.layers[:1])))
    assert plan_label(wide) == f"2 stages of 3-1 replicas, {tail}, 1 layer recomputed"
    assert plan_label(replace(plan, stages=(wide.stages[0],))) == f"1 stage of 3 replicas, {tail}"


def test_a_record_says_what_ran_where_and_keeps_the_plan(tmp_path: Path) -> None:
    """It has the search, the computer with its versions, both times, and the name of the plan's file."""
    (tmp_path / "plans").mkdir()
    search = Search(seed=3)
    found = record(
        replace(CELL, search=search),
        Question(fat_head(), equal_devices(2), Job(8), search),
        tmp_path / "plans" / "head.json",
    )
    assert (found.job, found.search, found.machine) == (Job(8), search, this_machine())
    assert found.machine.ortools
    assert found.wall is not None and found.wall > 0
    assert found.processor is not None and found.processor > 0
    assert found.plan_file == "plans/head.json"
    assert Plan.load(tmp_path / found.plan_file).step_time == found.answer.value


def test_a_search_without_a_plan_keeps_its_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cell whose time was over before a plan was found failed, with the bound and why the search stopped."""

    def late(*_: object, **__: object) -> None:
        raise UndecidedError("time", 17)

    monkeypatch.setattr(sys.modules["pipeplan.solve"], "solve", late)
    found = record(CELL, Question(fat_head(), equal_devices(2), Job(8)), tmp_path / "plan.json")
    assert (found.outcome, found.stop, found.bound) == ("failed", "time", 17)
    assert "no plan was found" in found.reason


def test_an_unforeseen_error_is_a_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bug in a solver makes a failed row with the error and its place, and nothing else."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(sys.modules["pipeplan.solve"], "solve", broken)
    found = record(CELL, Question(fat_head(), equal_devices(2), Job(8)), tmp_path / "plan.json")
    assert found.outcome == "failed"
    assert found.error.startswith("ZeroDivisionError: by nought (test_work.py, line")
    assert found.answer.value is None
