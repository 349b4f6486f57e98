"""Partitions that are not simulated, or not with the best recomputation: their bounds stay in the proof."""

import pytest

import pipeplan
from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import UndecidedError
from pipeplan.core.job import Job
from pipeplan.search import evaluate
from pipeplan_formulations.common import recomputation as recompute
from pipeplan_formulations.common.recomputation import _recomputation
from pipeplan_formulations.common.span_knapsack import greedy

MODEL = model_of([10, 10, 10], [10, 10, 10], saved=[1] * 3, output=[1] * 3, parameters=[0] * 3, sizes=(1,))
CLUSTER = Cluster("two", {"unit": DeviceKind("unit")}, (Node(("unit", "unit"), Link(10**9)),))


def asked(**options: object) -> Job:
    """Eight micro-batches: 16 actions on one stage, 32 on two."""
    return Job(batch=8, schedules=("1f1b-sno",), replicas=(1,), **options)


def test_a_plan_that_is_not_simulated_keeps_its_bound(monkeypatch):
    """Where two stages are faster but cannot be simulated, the bound stays at or below their step time."""
    best = pipeplan.solve(MODEL, CLUSTER, job=asked())
    monkeypatch.setattr(evaluate, "MOST", 20)
    result = pipeplan.solve(MODEL, CLUSTER, job=asked())
    assert (len(best.plan.stages), len(result.plan.stages)) == (2, 1)
    assert result.bound <= best.value < result.value


def test_without_a_plan_that_can_be_simulated_nothing_is_decided(monkeypatch):
    """If no plan can be simulated, the error states the time of the smallest one, not that none fits."""
    monkeypatch.setattr(evaluate, "MOST", 20)
    with pytest.raises(UndecidedError, match="to simulate and to check the smallest plan"):
        pipeplan.solve(MODEL, CLUSTER, job=asked(depths=(2,)))


def test_layers_that_are_recomputed_without_a_proof_keep_a_bound(monkeypatch):
    """Where the layers to recompute are not the best ones, the bound stays at or below the best step time."""
    forward, saved = [9, 23, 30, 29, 7, 13], [12, 36, 33, 35, 29, 18]
    twice = [2 * time for time in forward]
    model = model_of(forward, twice, saved=saved, output=[1] * 6, parameters=[0] * 6, sizes=(1,))
    cluster = Cluster("one", {"unit": DeviceKind("unit", memory=90)}, (Node(("unit",), Link()),))
    best = pipeplan.solve(model, cluster, job=asked())
    monkeypatch.setattr(recompute, "CROWD", 2)
    monkeypatch.setattr(recompute, "least_choice", lambda *layers: (greedy(*layers), False))
    _recomputation.cache_clear()
    result = pipeplan.solve(model, cluster, job=asked())
    assert result.bound <= best.value < result.value
