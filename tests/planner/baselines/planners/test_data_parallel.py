"""Data parallelism with and without overlap, on shipped models and clusters."""

from dataclasses import replace

import pytest

from pipeplan.core.job import Job
from pipeplan.io.load import load_cluster, load_model
from pipeplan.solve import solve

ROWS = {
    ("vgg-16", "8-v100-nvlink", 64): (141.4, 103),
    ("resnet-50", "2x4-v100-10gbit", 256): (244.5, 184),
    ("bert-large", "2x4-v100-10gbit", 64): (3025, 2375),
    ("gnmt-8", "2x4-v100-10gbit", 512): (1412, 1257),
}
"""Milliseconds of a step: gradients summed behind the last backward, and at most in buckets of 25 MB beside it."""


@pytest.mark.parametrize("question", ROWS, ids=lambda question: question[0])
def test_buckets_hide_at_least_what_buckets_of_25_mb_do(question: tuple[str, str, int]) -> None:
    """One stage on all devices: both rows, each with the best micro-batch size, and the answer."""
    model, cluster, batch = question
    behind, beside = ROWS[question]
    job = Job(batch=batch, depths=(1,), replicas=(8,), optimizer="sgd", zero=(0,))
    result = solve(load_model(model), load_cluster(cluster), job=job, time_limit=60)
    rows = result.baselines
    assert rows["data-parallel"].value is not None
    assert rows["data-parallel-overlapped"].value is not None
    assert rows["data-parallel"].value / 1e6 == pytest.approx(behind, rel=0.01)
    assert result.value <= rows["data-parallel-overlapped"].value <= beside * 1e6
    late = solve(load_model(model), load_cluster(cluster), job=replace(job, overlap_reduction=False), time_limit=5)
    assert late.value <= rows["data-parallel"].value
    assert late.baselines["data-parallel-overlapped"].value is None


def test_nobody_is_faster_without_a_planner() -> None:
    """VGG-16 over NVLink: overlapped data parallelism is the proved answer; without overlap it was 26 % off."""
    result = solve(load_model("vgg-16"), load_cluster("8-v100-nvlink"), 64, gap=0.01, time_limit=20)
    assert result.value <= result.baselines["data-parallel-overlapped"].value
    assert result.gap <= 0.01
    assert len(result.plan.stages) == 1
    assert len(result.plan.pipeline.stages[0].buckets) > 1
