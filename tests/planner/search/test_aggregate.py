"""Large aggregate nodes that are split because their best shape is no plan."""

import sys

import pipeplan
from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.search.nodes import aggregate_problem as layouts
from pipeplan.search.space import space

MODEL = model_of([10] * 4, [10] * 4, saved=[1] * 4, output=[1] * 4, parameters=[0] * 4, sizes=(1,))
CLUSTER = Cluster("four", {"unit": DeviceKind("unit")}, (Node(("unit",) * 4, Link(10**9, 15)),))


def test_an_aggregate_that_speaks_for_gpipe_keeps_its_plans_where_it_is_split(monkeypatch):
    """Where 1F1B's best shape has a depth that is not asked for, GPipe's plan of the other depth is found."""
    job = Job(batch=8, schedules=("1f1b-sno", "gpipe"), replicas=(1,), depths=(2,))
    right = pipeplan.solve(MODEL, CLUSTER, job=job)
    for module, name in ((space, "FEW"), (space, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(sys.modules["pipeplan.solve"], "baselines", lambda *_, **__: {})
    monkeypatch.setattr(space, "LONG", 0)
    found = pipeplan.solve(MODEL, CLUSTER, job=job)
    assert right.plan.schedule.family == found.plan.schedule.family == "gpipe"
    assert found.bound <= found.value == right.value


def test_large_clusters_answer_with_the_depth_that_is_asked_for(monkeypatch):
    """The problem has no least depth; where its best shape is too shallow, deeper ones are looked at."""
    job = Job(batch=8, depths=(3,), recompute="none")
    right = pipeplan.solve(MODEL, CLUSTER, job=job)
    for module, name in ((space, "FEW"), (space, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)
    found = pipeplan.solve(MODEL, CLUSTER, job=job)
    assert len(found.plan.stages) == 3
    assert found.bound <= right.value == found.value


def test_an_answer_has_the_bound_of_each_layout(monkeypatch):
    """All layouts of a large cluster are named, least bound first; together they bound no less than the answer."""
    for module, name in ((space, "FEW"), (space, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)
    found = pipeplan.solve(MODEL, CLUSTER, job=Job(batch=8, micro_batches=(8,)))
    bounds = [bound for _, bound in found.layouts]
    names = {name for name, _ in found.layouts}
    assert {f"micro-batch 1, {each}" for each in ("1 replica each", "4 replicas each", "unequal replicas")} <= names
    assert bounds == sorted(bounds)
    assert found.bound <= bounds[0]
    assert bounds[-1] <= found.value
    assert found.as_json()["layouts"][0]["bound_s"] == bounds[0] / 1e9
