"""Partitions that are not simulated, or not with the best recomputation: their bounds stay in the proof."""

from random import Random

import pytest

import pipeplan
from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import UndecidedError
from pipeplan.core.job import Job
from pipeplan.search import evaluate
from pipeplan.search.nodes import family
from pipeplan.search.space import in_flight
from pipeplan_formulations.common import recomputation as recompute
from pipeplan_formulations.common.recomputation import _recomputation
from pipeplan_formulations.common.span_knapsack import greedy
from referee.bridge import objects
from referee.questions import question

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


@pytest.mark.parametrize("backend", ["exact", "cpsat"])
@pytest.mark.parametrize("number", [1, 10, 25, 56, 62, 65])
def test_partitions_that_are_not_listed_are_searched_all_the_same(number, backend, monkeypatch):
    """Where a simulation adds no cut, its partition alone is left out: value and bound are those of the list."""
    model, cluster, job = objects(question(number))
    listed = pipeplan.solve(model, cluster, job=job, workers=1)
    monkeypatch.setattr(family, "few", lambda _: False)
    found = pipeplan.solve(model, cluster, job=job, workers=1, backend=backend)
    assert (found.value, found.bound) == (listed.value, listed.bound)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("seed", [3, 7, 14, 19])
def test_boxes_of_counts_are_split_until_nothing_is_left(seed, listed, monkeypatch):
    """Where memory holds fewer micro-batches than the box: its parts have the plans of all counts one by one."""
    draw = Random(seed)
    forward, saved, output = ([draw.randint(*ends) for _ in range(4)] for ends in ((5, 20), (5, 9), (1, 5)))
    cluster = equal_devices(3, memory=draw.randint(60, 120), link=Link(10**9, draw.randint(5, 40)))
    ask = {"batch": 12, "micro_batches": (12,), "replicas": (1,), "workers": 1}
    model = model_of(forward, saved=saved, output=output)
    one_by_one = pipeplan.solve(model, cluster, **ask)
    monkeypatch.setattr(in_flight, "FEW", 1)
    monkeypatch.setattr(family, "few", (lambda _: listed))
    found = pipeplan.solve(model, cluster, **ask)
    assert (found.value, found.bound) == (one_by_one.value, one_by_one.bound)
