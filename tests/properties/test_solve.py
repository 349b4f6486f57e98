"""The answer of `solve` against an exhaustive search that asks no formulation."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import equal_devices, model_of
from pipeplan.cluster import Cluster, Link
from pipeplan.errors import InfeasibleError
from pipeplan.job import Job
from pipeplan.model import Model
from pipeplan.pricing import assemble, price
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import simulate
from pipeplan.solve import solve
from pipeplan_formulations.report import Status


@st.composite
def questions(draw: st.DrawFn) -> tuple[Model, Cluster, Job]:
    """Up to five layers, up to three devices, links, memory limits that sometimes exclude everything."""
    n = draw(st.integers(2, 5))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    sizes = draw(st.sampled_from([(1,), (1, 2), (2, 4)]))
    model = model_of(
        numbers(0, 9),
        numbers(0, 9),
        saved=numbers(0, 6),
        output=numbers(0, 6),
        parameters=[4 * value for value in numbers(0, 2)],
        update=numbers(0, 3),
        sizes=sizes,
    )
    bandwidth = draw(st.sampled_from([None, 10**9, 5 * 10**8]))
    link = Link(bandwidth, draw(st.integers(0, 3)))
    memory = draw(st.sampled_from([None, None, 20, 40, 80]))
    cluster = equal_devices(draw(st.integers(1, 3)), memory, link, draw(st.sampled_from(["none", "copy", "stream"])))
    return model, cluster, Job(batch=draw(st.sampled_from([4, 8])))


def exhaustive(model: Model, cluster: Cluster, job: Job) -> int | None:
    """The least simulated step time over every depth, size, family and partition that fits; None if none does."""
    n, best = len(model.layers), None
    for size in sorted({profile.micro_batch for profile in model.profiles}):
        for depth in range(1, min(n, len(cluster.devices)) + 1):
            chain = price(model, cluster, cluster.devices[:depth], size, job)
            for family in FAMILIES.values():
                if cluster.overlap not in family.suits:
                    continue
                schedule = family.write((1,) * depth, job.batch // size)
                for inner in combinations(range(1, n), depth - 1):
                    pipeline = assemble(chain, cluster, (0, *inner, n))
                    timeline = simulate(schedule, pipeline)
                    fits = all(peak <= limit for peak, limit in zip(timeline.peaks, pipeline.limits, strict=True))
                    if fits and (best is None or timeline.makespan < best):
                        best = timeline.makespan
    return best


@given(questions())
@settings(max_examples=300)
@pytest.mark.parametrize("backend", ["cpsat", "cbc"])
def test_solve_finds_and_proves_the_best_plan(backend: str, question: tuple[Model, Cluster, Job]) -> None:
    """Value and bound both equal the exhaustive optimum over depths, micro-batches, families and partitions."""
    model, cluster, job = question
    optimum = exhaustive(model, cluster, job)
    if optimum is None:
        with pytest.raises(InfeasibleError, match="What would fit"):
            solve(model, cluster, job=job, backend=backend)
        return
    result = solve(model, cluster, job=job, backend=backend)
    assert (result.value, result.bound, result.status) == (optimum, optimum, Status.OPTIMAL)


@given(questions())
@settings(max_examples=100)
def test_no_balancer_beats_the_answer_and_bounds_are_bounds(question: tuple[Model, Cluster, Job]) -> None:
    """Stopped early, the answer is still no worse than any balancer, and its bound no higher than the optimum."""
    model, cluster, job = question
    optimum = exhaustive(model, cluster, job)
    if optimum is None:
        return
    result = solve(model, cluster, job=job, backend="exact", gap=0.2)
    assert result.bound <= optimum <= result.value
    assert all(row.value is None or row.value >= result.value for row in result.baselines.values())
