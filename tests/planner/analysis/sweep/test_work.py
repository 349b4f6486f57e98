"""Labels of plans and texts of unexpected errors in records."""

import sys
from dataclasses import replace

import pytest

from helpers.instances import equal_devices, fat_head
from pipeplan.analysis.sweep.cells import Cell, Question
from pipeplan.analysis.sweep.experiment import NamedModel, Search
from pipeplan.analysis.sweep.work import plan_label, record
from pipeplan.core.job import Job
from pipeplan.solve import solve

CELL = Cell(NamedModel("head"), "box", Job(8))


def test_a_plan_is_named_by_its_widths() -> None:
    """The devices of every stage, micro-batches, schedule, and how many layers are recomputed."""
    plan = solve(fat_head(), equal_devices(2), job=Job(8, depths=(2,), replicas=(1,)), backend="exact").plan
    first, second = plan.stages
    tail = f"{plan.micro_batches} micro-batches of {plan.micro_batch}, {plan.schedule.family}"
    assert plan_label(plan) == f"2 stages of 1, {tail}"
    wide = replace(plan, stages=(replace(first, devices=(0, 2, 3)), replace(second, recompute=second.layers[:1])))
    assert plan_label(wide) == f"3-1, {tail}, 1 layer recomputed"
    assert plan_label(replace(plan, stages=(wide.stages[0],))) == f"1 stage of 3, {tail}"


def test_an_unforeseen_error_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a solver makes a failed row with the error and its place, and nothing else."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(sys.modules["pipeplan.solve"], "solve", broken)
    found = record(CELL, Question(fat_head(), equal_devices(2), Job(8)), Search())
    assert found.outcome == "failed"
    assert found.error.startswith("ZeroDivisionError: by nought (test_work.py, line")
    assert found.answer.value is None
