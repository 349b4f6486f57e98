"""Non-increasing in-flight counts along the pipeline, and the dynamic programme over them."""

from dataclasses import replace
from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from helpers.allocations import (
    backwards,
    brute_force,
    chain_allocations,
    drains,
    every_allocation,
    meets_constraints,
    right_sides,
)
from helpers.partitions import without_roles
from helpers.quick import examples
from pipeplan.schedules import FAMILIES, first_deadlock
from pipeplan.search.space.in_flight import InFlightBox, between
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation, exact
from pipeplan_formulations.allocation.non_increasing import excess_ranges, is_non_increasing
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import largest_backward_between
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import run
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status

REPLICAS = st.lists(st.integers(1, 5), min_size=1, max_size=7)


def extremes(replicas: list[int], micro_batches: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The fewest and the most in-flight counts."""
    box = InFlightBox.of(replicas, micro_batches)
    return box.low, box.high


@given(REPLICAS, st.integers(1, 40), st.data())
@settings(max_examples=500, deadline=None)
def test_non_increasing_counts_never_deadlock(replicas: list[int], micro_batches: int, data: st.DataObject) -> None:
    """SNO, SO, the most, and counts that fill any memory are non-increasing, and no such counts can deadlock."""
    least, most = extremes(replicas, micro_batches)
    families = [FAMILIES[name].in_flight(replicas, micro_batches) for name in ("1f1b-sno", "1f1b-so")]
    assert all(counts in InFlightBox.of(replicas, micro_batches) for counts in families)
    most_in_flight = data.draw(st.lists(st.integers(0, 40), min_size=len(replicas), max_size=len(replicas)))
    drawn = tuple(data.draw(st.integers(a, b)) for a, b in zip(least, most, strict=True))
    shares = [-(-micro_batches // r) for r in replicas]
    for counts in (least, most, InFlightBox.of(replicas, micro_batches).fill_memory(most_in_flight)):
        assert is_non_increasing(replicas, shares, least, counts)
    for counts in (least, most, drawn):
        assert not is_non_increasing(replicas, shares, least, counts) or first_deadlock(replicas, counts) is None


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 40), st.data())
@settings(max_examples=300, deadline=None)
def test_counts_that_are_moved_stay_non_increasing(width: int, stages: int, many: int, data: st.DataObject) -> None:
    """A count that may be changed takes others along, and no more of them than it has to."""
    box = InFlightBox.of([width] * stages, many)
    before = box.fill_memory(data.draw(st.lists(st.integers(0, 40), min_size=stages, max_size=stages)))
    stage, by = data.draw(st.integers(0, stages - 1)), data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    after = box.moved(before, stage, by)
    assert after[stage] == before[stage] + by
    if box.low[stage] <= after[stage] <= box.high[stage]:
        assert after in box
        for s, (old, new) in enumerate(zip(before, after, strict=True)):
            assert s == stage or new == old or (*after[:s], old, *after[s + 1 :]) not in box


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_parts_of_a_box_hold_all_non_increasing_counts(replicas: list[int], micro_batches: int, seed: int) -> None:
    """However a box is split, non-increasing counts are in exactly one part, and the ends of all parts are tight."""
    random = Random(seed)
    boxes = [InFlightBox.of(replicas, micro_batches)]
    every = sorted(boxes[0].counts())
    for _ in range(random.randint(1, 4)):
        wide = [box for box in boxes if box.low != box.high]
        if not wide:
            break
        box = random.choice(wide)
        stage = random.choice([s for s, (a, b) in enumerate(zip(box.low, box.high, strict=True)) if a < b])
        boxes.remove(box)
        boxes += box.split(stage, random.randint(box.low[stage], box.high[stage] - 1))
    assert sorted(counts for box in boxes for counts in box.counts()) == every
    assert all(box.low in box and box.high in box for box in boxes)
    assert all(counts in box for box in boxes for counts in box.counts())


def test_no_split_of_a_box_loses_counts_of_unlike_replicas() -> None:
    """Stages that hold as many as SNO oblige none before them, though SNO's are rounded up."""
    for replicas in product((1, 3), (1, 2, 3), (1, 2)):
        whole = InFlightBox.of(replicas, 8)
        every = sorted(whole.counts())
        for stage, (low, high) in enumerate(zip(whole.low, whole.high, strict=True)):
            if low < high:
                parts = whole.split(stage, (low + high) // 2)
                assert sorted(counts for box in parts for counts in box.counts()) == every, (replicas, stage)


@given(st.integers(1, 8), st.integers(1, 20), st.data())
@settings(max_examples=300, deadline=None)
def test_without_replicas_each_stage_holds_one_more_than_the_next(depth: int, many: int, data: st.DataObject) -> None:
    """On single devices: a stage above SNO holds less than the one before, unless that one holds all micro-batches."""
    least, most = extremes([1] * depth, many)
    counts = [data.draw(st.integers(a, b)) for a, b in zip(least, most, strict=True)]
    neighbours = all(
        counts[s] == least[s] or counts[s] < counts[s - 1] or counts[s - 1] == many for s in range(1, depth)
    )
    assert is_non_increasing([1] * depth, [many] * depth, least, counts) == neighbours


def test_few_choices_are_listed() -> None:
    """Of six count vectors of three stages and four micro-batches, those that are not non-increasing are left out."""
    families = between((1, 1, 1), 4)
    assert families is not None
    counts = [family.in_flight((1, 1, 1), 4) for family in families]
    assert counts == [(3, 2, 1), (4, 2, 1), (4, 3, 1), (4, 4, 1)]


def test_ranges_of_excess_have_no_holes() -> None:
    """Every excess up to the largest lies in just one range."""
    for most in range(70):
        assert [excess for each in excess_ranges(most) for excess in each] == list(range(most + 1))


def chosen_counts(problem: ChainAllocation) -> ChainAllocation:
    """The problem with free counts, and enough micro-batches for them to matter."""
    return replace(
        problem,
        in_flight_rule="non_increasing",
        objective="step",
        alternating=True,
        two_trips=False,
        phases=False,
        overlap="copy",
        micro_batches=problem.micro_batches + 3,
    )


@given(chain_allocations(), st.floats(0, 1))
@examples(25, 300)
def test_under_a_ceiling_the_programme_bounds_non_increasing_counts(problem: ChainAllocation, share: float) -> None:
    """V* and A* are no more than brute force finds, and equal it where every range holds a single excess."""
    problem = chosen_counts(problem)
    sides = [right_sides(problem, stages) for stages in every_allocation(problem) if meets_constraints(problem, stages)]
    most_in_flight = [each for each in sides if each is not None]
    assume(most_in_flight)
    services = sorted({max(fourth) - fourth[0] for _, fourth in most_in_flight})
    ceiling = services[int(share * (len(services) - 1))]
    kept = [(max(third), fourth[0]) for third, fourth in most_in_flight if max(fourth) - fourth[0] <= ceiling]
    grid = Grid(problem)
    clock = Clock(Limits(time=30))
    spans = Spans(problem, grid, problem.largest, clock)
    base = run(problem, grid, spans, clock, problem.largest)
    rough = run(problem, grid, spans, clock, problem.largest, ceiling, within=base, coarse=True)
    found = run(problem, grid, spans, clock, problem.largest, ceiling, within=rough)
    for number, quantity in enumerate(("whole", "whole_trip")):
        best = min(each[number] for each in kept)
        value = int(getattr(found, quantity).min())
        assert int(getattr(rough, quantity).min()) <= value <= best
        if int(grid.total.max()) <= 3 and not problem.joint.any():
            assert value == best


EMPTY_STAGE = ChainAllocation(
    forward=np.array([[1, 0]]),
    backward=np.array([[0, 0]]),
    update=np.array([[[0, 1], [0, 0]]]),
    resident=np.array([[[7, 1], [7, 0]]]),
    reduce_base=np.array([[1, 0]]),
    saved=np.array([2, 6]),
    workspace=np.array([1, 0]),
    received=np.array([4]),
    limit=np.array([12]),
    units=np.array([3]),
    node=np.array([2]),
    send=np.array([[[[0], [1]]]]),
    send_back=np.array([[[[1], [1]]]]),
    latency=np.array([[[1, 1]]]),
    micro_batches=1,
    widths=(1, 2),
)
"""A second stage that computes nothing, with room for one micro-batch: it needs no more in flight, whatever e is."""


MORE_IN_FLIGHT = ChainAllocation(
    forward=np.array([[2, 4, 2, 4, 1]]),
    backward=np.array([[5, 5, 3, 3, 8]]),
    update=np.array([[[2, 4, 4, 2, 4], [4, 0, 0, 4, 2]]]),
    reduce_base=np.array([[3, 0]]),
    resident=np.array([[[4, 3, 6, 5, 4], [7, 5, 0, 7, 0]]]),
    saved=np.array([2, 1, 0, 3, 0]),
    output=np.array([0, 4, 2, 4, 2]),
    workspace=np.array([2, 1, 2, 5, 2]),
    recomputable=np.array([True, True, True, False, True]),
    limit=np.array([22]),
    send=np.array([[[[1, 0, 1, 3], [3, 2, 3, 0]]]]),
    send_back=np.array([[[[0, 0, 1, 0], [2, 1, 4, 2]]]]),
    latency=np.array([[[3, 1]]]),
    received=np.array([2, 3, 2, 3]),
    units=np.array([3]),
    node=np.array([1]),
    micro_batches=5,
    widths=(1, 3),
    last=((0, 1),),
)
"""The first stage's backward is the largest only with more in flight than its delay needs: it then recomputes."""
PEAKS = st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 2), st.integers(0, 2))
"""The least and the most of a peak, and the narrowest and the widest of its stages, as shares and places of what is."""


@given(chain_allocations(), st.floats(0, 1), PEAKS)
@example(EMPTY_STAGE, 0.0, (0.0, 0.0, 1, 1))
@example(MORE_IN_FLIGHT, 0.0, (1.0, 0.5, 0, 0))
@examples(30, 300)
def test_with_a_peak_the_programme_bounds_all_whose_largest_backward_lies_there(
    problem: ChainAllocation, share: float, drawn: tuple[float, float, int, int]
) -> None:
    """V* and A* are no more than brute force finds below the ceiling, alternation too, the largest B in the peak."""
    problem = chosen_counts(without_roles(problem))  # with roles alternation is left out
    least, most, narrow, wide = drawn
    widths = problem.widths[min(narrow, wide) : max(narrow, wide) + 1]
    assume(widths)
    rows = []
    for stages in every_allocation(problem):
        sides = right_sides(problem, stages) if meets_constraints(problem, stages) else None
        if sides is not None:
            third, fourth = sides
            service = max(*fourth, *drains(problem, stages, fourth[0])) - fourth[0]
            each = [b // place.width for b, place in zip(backwards(problem, stages), stages, strict=True)]
            where = {place.width for q, place in zip(each, stages, strict=True) if q == max(each)}
            rows.append((max(third), fourth[0], service, max(each), where))
    assume(rows)
    services, peaks = sorted({row[2] for row in rows}), sorted({row[3] for row in rows})
    ceiling = services[int(share * (len(services) - 1))]
    low, high = sorted((int(least * (len(peaks) - 1)), int(most * (len(peaks) - 1))))
    under, over = peaks[low], peaks[high]
    kept = [row for row in rows if row[2] <= ceiling and under <= row[3] <= over and row[4] & set(widths)]
    assume(kept)
    grid, clock = Grid(problem), Clock(Limits(time=30))
    spans = Spans(problem, grid, problem.largest, Clock(Limits(time=30)))
    largest = largest_backward_between(problem, under, over, widths)
    found = run(problem, grid, spans, clock, problem.largest, ceiling, largest=largest)
    assert found is not None
    for number, value in enumerate((found.whole, found.whole_trip)):
        assert int(value.min()) <= min(row[number] for row in kept)


@given(chain_allocations())
@examples(40, 300)
def test_the_bound_holds_without_the_search_and_meets_the_optimum_with_it(problem: ChainAllocation) -> None:
    """Intervals alone never exceed brute force over non-increasing counts; the search closes the rest."""
    problem = chosen_counts(problem)
    best = brute_force(problem)
    with patch.object(exact.BestFirst, "run", lambda *_: None):
        rough = allocation.solve(problem, Limits(time=30))
    report = allocation.solve(problem, Limits(time=30))
    if best is None:
        assert rough.status is report.status is Status.INFEASIBLE
        return
    assert rough.bound <= best
    again = allocation.solve(problem, Limits(time=30), known=rough.bound)
    assert (again.objective, again.bound) == (best, best)
    assert rough.objective is None or rough.objective >= best
    assert (report.status, report.objective, report.bound) == (Status.OPTIMAL, best, best)
