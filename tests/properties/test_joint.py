"""Joint problem against enumeration of all its choices, each with an exhaustive search for its orders."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import exhaustive_orders
from helpers.joint_pipelines import brute_force, every_choice, random_joint
from helpers.partitions import chain_partition
from pipeplan_formulations import joint, partition
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.joint import JointPipeline, Search
from pipeplan_formulations.joint.box import Box
from pipeplan_formulations.joint.relaxed import chained, relaxed, scheduled
from pipeplan_formulations.schedule import evaluate, lower_bound

LIMITS = Limits(time=60)


def agrees(seed: int) -> None:
    """Check that value and bound equal the best of all choices and orders, and that infeasibility is reported."""
    problem = random_joint(seed)
    best = brute_force(problem)
    report = joint.solve(problem, LIMITS)
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert (report.objective, report.bound, report.status) == (best, best, Status.OPTIMAL)
    choice, orders = report.solution
    instance = scheduled(problem, choice)
    assert instance is not None
    assert evaluate(instance, orders) == best


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_partition_and_orders_are_best_and_proved(seed: int) -> None:
    """The result is the best over partitions, recomputed layers, splits and orders, with any memory limits."""
    agrees(seed)


@pytest.mark.parametrize("overlap", ["none", "copy", "stream"])
@pytest.mark.parametrize("links", [3, 8])
def test_sends_that_outlast_their_actions(overlap: str, links: int) -> None:
    """A send delays by all its time, or, where tensors leave while they are made, by what outlasts the action."""
    times = np.tile([5, 2, 4], (2, 1))
    chain = chain_partition(times, times, links=links, weight=times - 1, micro_batches=2, overlap=overlap)
    problem = JointPipeline(chain, 2 * times - 1)
    assert joint.solve(problem, LIMITS).objective == brute_force(problem)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_partition_and_orders_are_best_and_proved_of_three_hundred(seed: int) -> None:
    """The result is the best of all choices on many more instances."""
    agrees(seed)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3]))
def test_a_gap_that_is_asked_for_is_kept(seed: int, gap: float) -> None:
    """With a gap the result is within it of the bound, and the optimum lies between them."""
    problem = random_joint(seed)
    report = joint.solve(problem, replace(LIMITS, gap=gap))
    best = brute_force(problem)
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert report.bound <= best <= report.objective
    assert report.objective - report.bound <= gap * report.objective


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.9]), st.integers(1, 9))
def test_what_a_known_value_excludes_still_bounds(seed: int, gap: float, above: int) -> None:
    """With a value from elsewhere and a gap, boxes that need no search are no proof that the value is the least."""
    problem = random_joint(seed)
    best = brute_force(problem)
    if best is not None:
        search = Search(problem, replace(LIMITS, gap=gap))
        search.value = best + above
        search.run()
        assert search.bound <= best


def test_a_whole_backward_may_be_much_faster_than_its_parts() -> None:
    """Bounds use the shorter of I and B: here no split pays off, and I alone takes longer than B."""
    layers = np.array([[1, 2, 1]] * 2)
    chain = replace(chain_partition(layers, 9 * layers, micro_batches=2), weight=9 * layers)
    problem = JointPipeline(chain, 2 * layers)
    report = joint.solve(problem, LIMITS)
    assert report.objective == report.bound == brute_force(problem)
    assert report.solution[0].split == (False, False)


def random_box(problem: JointPipeline, draw: Random) -> Box | None:
    """Random box of boundaries, counts and splits; None if it is empty."""
    n, most = problem.layers, problem.micro_batches
    inner = [sorted((draw.randint(1, n), draw.randint(1, n))) for _ in range(problem.stages - 1)]
    counts = [sorted((draw.randint(1, most), draw.randint(1, most))) for _ in range(problem.stages)]
    low, high = ((0, *(pair[end] for pair in inner), n) for end in (0, 1))
    fewest, room = (tuple(pair[end] for pair in counts) for end in (0, 1))
    return Box(low, high, fewest, room, tuple(draw.choice([None, None, True, False]) for _ in counts)).tight()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_what_relaxes_a_box_bounds_its_choices(seed: int) -> None:
    """No choice of a box has orders below the box's bound, by either relaxation."""
    problem = random_joint(seed)
    box = random_box(problem, Random(seed))
    if box is None:
        return
    values = [exhaustive_orders.solve(instance, LIMITS).objective for instance in every_choice(problem, box)]
    instance = relaxed(problem, box)
    if instance is None:
        assert not values
        return
    master = partition.solve(chained(problem, box, instance.limit), LIMITS, backend="exact")
    optimum = exhaustive_orders.solve(instance, LIMITS).objective
    for value in values:
        assert max(lower_bound(instance), optimum, master.bound) <= value


@pytest.mark.parametrize("first", [0, 20, 40])
def test_each_number_of_a_relaxed_box_is_the_least_of_its_choices(first: int) -> None:
    """Times are no longer, and rooms no smaller, than in any choice, however much that recomputes."""
    for seed in range(first, first + 20):
        problem = random_joint(seed)
        box = random_box(problem, Random(seed))
        least = None if box is None else relaxed(problem, box)
        for one in () if least is None else every_choice(problem, box):
            for name in ("forward", "backward", "ending", "lag", "lag_back"):
                rows = zip(getattr(least, name), getattr(one, name), strict=True)
                assert all(low <= time for low, time in rows), (seed, name)
            assert all(room >= own for room, own in zip(least.limit, one.limit, strict=True)), seed


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_taking_a_box_out_leaves_disjoint_boxes(seed: int) -> None:
    """Every partition of a box lies in the part removed or in exactly one of the remaining boxes."""
    problem, draw = random_joint(seed, layers=7), Random(seed)
    outer = random_box(problem, draw)
    if outer is None:
        return
    middle = [draw.randint(a, b) for a, b in zip(outer.low, outer.high, strict=True)]
    low = tuple(draw.randint(a, x) for a, x in zip(outer.low, middle, strict=True))
    high = tuple(draw.randint(x, b) for x, b in zip(middle, outer.high, strict=True))
    inner = replace(outer, low=low, high=high)
    parts = [inner, *outer.without(inner)]
    for row in _rows(outer.low, outer.high):
        holding = sum(_rows_hold(part, row) for part in parts)
        assert holding == 1, (outer, inner, row)


def _rows(low: tuple[int, ...], high: tuple[int, ...]) -> list[tuple[int, ...]]:
    rows: list[tuple[int, ...]] = [()]
    for a, b in zip(low, high, strict=True):
        rows = [(*row, x) for row in rows for x in range(a, b + 1) if not row or x > row[-1]]
    return rows


def _rows_hold(box: Box, row: tuple[int, ...]) -> bool:
    return all(a <= x <= b for a, x, b in zip(box.low, row, box.high, strict=True))
