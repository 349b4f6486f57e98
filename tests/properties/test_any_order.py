"""Plans of any order against all partitions, recomputed layers and orders, by simulation."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain as joined
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import exhaustive_orders
from helpers.device_groups import all_device_groups
from helpers.instances import model_of
from helpers.pipeline_schedules import in_no_less
from helpers.quick import examples
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan import Plan
from pipeplan.core.validate import validate_plan
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import Chain
from pipeplan.costs.pricing import price
from pipeplan.search.scheduling import as_schedule, schedule_problem
from pipeplan.simulate import makespan, simulate
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Limits, Status

Question = tuple[Model, Cluster, Job]


@st.composite
def questions(draw: st.DrawFn, busy: bool = False) -> Question:
    """Up to four layers, up to three devices of one or two speeds, up to three micro-batches, memory that may be short.

    Links have latency; ``busy`` ones also occupancy, which the exhaustive orders ignore.
    """
    n = draw(st.integers(2, 4))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    output = numbers(0, 6)
    batch, sizes = draw(st.sampled_from([(2, (1,)), (3, (1,)), (2, (1, 2))]))
    model = model_of(
        numbers(0, 9),
        numbers(0, 18),
        saved=[size + extra for size, extra in zip(output, numbers(0, 6), strict=True)],
        output=output,
        parameters=[4 * value for value in numbers(0, 2)],
        update=numbers(0, 3),
        sizes=sizes,
    )
    memory = draw(st.sampled_from([None, 20, 30, 40, 80]))
    kinds = {
        "unit": DeviceKind("unit", memory=memory),
        "other": DeviceKind("other", memory=draw(st.sampled_from([memory, 60])), timed_as="unit", speed=0.5),
    }
    names = draw(st.sampled_from([("unit", "unit"), ("other", "unit"), ("unit",) * 3, ("other", "unit", "unit")]))
    link = Link(draw(st.sampled_from([10**9, 5 * 10**8])) if busy else None, draw(st.integers(0, 3)))
    overlap = Overlap(draw(st.sampled_from(["none", "copy", "stream"])))
    cluster = Cluster("small", kinds, (Node(names, link),), overlap=overlap)
    recompute = draw(st.sampled_from(["choose", "choose", "none", "full"]))
    return model, cluster, Job(batch=batch, schedules=("any",), recompute=recompute)


def rows(question: Question) -> Iterator[tuple[Chain, int]]:
    """Yield the chains of all equal device groups and micro-batch sizes, with the number of micro-batches."""
    model, cluster, job = question
    for size in sorted({profile.micro_batch for profile in model.profiles}):
        count = job.batch // size
        for groups in all_device_groups(cluster, replace(job, equal_replicas=True), len(model.layers), count):
            yield price(model, cluster, groups, size, job), count


def pipelines(question: Question) -> Iterator[tuple[Pipeline, int]]:
    """Every partition with every set of layers recomputed."""
    cluster = question[1]
    for chain, count in rows(question):
        for inner in combinations(range(1, chain.layers), chain.stages - 1):
            edges = (0, *inner, chain.layers)
            subsets = [
                list(joined.from_iterable(combinations(range(a, b), size) for size in range(b - a + 1)))
                for a, b in pairwise(edges)
            ]
            for again in product(*subsets) if chain.recomputable.any() else [[()] * chain.stages]:
                yield assemble(chain, cluster, edges, again), count


def best_order(question: Question) -> int | None:
    """The least step time over all these, each with its best order; None if nothing fits.

    Pipelines that no order makes better than the best so far are left out.
    """
    best = None
    every = {schedule_problem(pipeline, count): (pipeline, count) for pipeline, count in pipelines(question)}
    for problem in sorted(every, key=in_no_less):
        if best is not None and in_no_less(problem) >= best:
            break
        found = exhaustive_orders.solve(problem, Limits(time=600)).solution
        if found is not None:
            value = makespan(as_schedule(found, *every[problem]), every[problem][0])
            best = value if best is None else min(best, value)
    return best


def best_family(question: Question) -> int | None:
    """The result of the search over families, with unequal replicas too; None if nothing fits."""
    model, cluster, job = question
    try:
        return solve(model, cluster, job=replace(job, schedules=())).value
    except InfeasibleError:
        return None


@given(questions())
@examples(12, 300)
def test_partition_and_order_are_best_and_proved(question: Question) -> None:
    """The answer is the best over device groups, sizes, partitions, recomputation and orders, and so is its bound."""
    model, cluster, job = question
    values = [value for value in (best_order(question), best_family(question)) if value is not None]
    if not values:
        with pytest.raises(InfeasibleError, match=r"What (would fit|it takes)"):
            solve(model, cluster, job=job)
        return
    result, optimum = solve(model, cluster, job=job), min(values)
    assert (result.value, result.bound, result.status) == (optimum, optimum, Status.OPTIMAL)
    validate_plan(result.plan, model, cluster)


@given(questions(busy=True))
@settings(max_examples=20, deadline=None)
def test_bounds_hold_where_links_are_busy(question: Question) -> None:
    """Where tensors wait for links the bound is no higher than any schedule, and no family beats the answer."""
    model, cluster, job = question
    order, families = best_order(question), best_family(question)
    if order is None and families is None:
        return
    result = solve(model, cluster, job=job)
    assert result.bound <= min(value for value in (order, families) if value is not None)
    assert families is None or result.value <= families


def test_a_found_plan_survives_its_file(tmp_path) -> None:
    """A plan that is written and read again has the same lists and step time."""
    model = model_of([10] * 8 + [40], saved=[8] * 9, output=[2] * 9, sizes=(1,))
    cluster = Cluster.uniform(3, DeviceKind("unit"), None, Overlap.COPY)
    plan = solve(model, cluster, 8, schedules=("any",), replicas=(1,), depths=(3,), time_limit=10).plan
    assert plan.schedule.family == "found"
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    validate_plan(again, model, cluster)
    assert again == plan
    assert simulate(again.schedule, again.pipeline).makespan == plan.step_time
