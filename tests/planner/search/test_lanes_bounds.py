"""Bounds on one lane and two together."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan import search
from pipeplan.core.cluster import Link
from pipeplan.core.job import Job
from pipeplan.search import turns
from pipeplan.solve import solve


def test_what_two_lanes_need_excludes_no_plan_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward beside a backward needs 6 bytes more than the 34 in which each stage runs one action at a time."""
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))  # the search alone, group by group
    monkeypatch.setattr(search, "_lists_shapes", lambda _: False)
    monkeypatch.setattr(search, "_first_plans", lambda *_: iter(()))
    model = model_of([10, 10], [20, 20], saved=[4, 4], output=[2, 2], parameters=[10, 10])
    costs = tuple(replace(cost, workspace=6) for cost in model.profiles[0].costs)
    model = replace(model, profiles=(replace(model.profiles[0], costs=costs),))
    job = Job(4, depths=(2,), micro_batches=(4,), schedules=("1f1b-as", "fbp-as"), recompute="none")
    for memory, families in ((34, {"1f1b-as"}), (48, {"1f1b-as", "fbp-as"})):
        cluster = equal_devices(2, memory, Link(10**9, 1), "stream")
        found = solve(model, cluster, job=job)
        assert found.plan.schedule.family in families
        assert found.bound == found.value == 154
