"""Tables of the allocation problem: the least heads, and ways through them, against single allocations."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.allocations import chain_allocations, every_allocation, in_role, meets_constraints, objective
from pipeplan_formulations.allocation import Allocation, ChainAllocation
from pipeplan_formulations.allocation.best_first.prefix_tables import prefix_tables
from pipeplan_formulations.allocation.suffix_bounds.reachable import Reachable
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import run
from pipeplan_formulations.allocation.suffix_bounds.trace import follow, roots
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.common.report import Limits


def ways(problem: ChainAllocation, target: int) -> list[tuple[int, list[tuple[int, Allocation, int, int]]]]:
    """Allocations within the target: value, and kind, stages from it on, boundary and E_0 + H before each stage."""
    found = []
    for stages in every_allocation(problem):
        value = objective(problem, stages)
        if value is None or value > target or not meets_constraints(problem, stages):
            continue
        together = problem.ends_together
        head, states = max(problem.finish(place) for place in (stages[0], *stages[-1:] * together)), []
        hops = [*problem.hops(stages), (0, 0, 0)]
        forward, backward = in_role(problem, stages, "ahead")
        for s, place in enumerate(stages):
            states.append((place.kind, stages[s:], place.start, head if s else 0))
            send, back, latency = hops[s]
            head += forward[s] + backward[s] + 2 * latency + (0 if problem.overlap == "stream" else send + back)
        found.append((value, states))
    return found


@given(chain_allocations(), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_no_allocation_within_the_target_is_excluded(problem: ChainAllocation, share: float) -> None:
    """The states of every allocation within a target are reachable, with heads of at least the table's value."""
    problem = replace(problem, first=(), objective="step")
    every = ways(problem, problem.largest)
    assume(every)
    values = sorted(value for value, _ in every)
    target = values[int(share * (len(values) - 1))]
    grid = Grid(problem)
    clock = Clock(Limits(time=30))
    spans = Spans(problem, grid, target, clock)
    reachable = Reachable(problem, grid, spans, None, None, clock)
    tables = run(problem, grid, spans, clock, target)
    assert tables is not None
    heads = prefix_tables(problem, grid, spans, clock, target, tables)
    assert heads is not None
    again = run(problem, grid, spans, clock, target, heads=heads)
    assert again is not None
    assert int(tables.whole.min()) <= int(again.whole.min()) <= values[0]
    for value, states in every:
        if value > target:
            continue
        for kind, rest, start, head in states:
            place = int(sum(grid.step(each.kind, each.width) for each in rest))
            assert reachable.first[place] <= start <= reachable.last[place]
            assert heads[kind, place, start] <= head
            assert tables.levels[-1][0].time[kind, place, start] + (head if start else 0) <= target


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=100, deadline=None)
def test_a_way_through_the_tables_is_an_allocation_above_its_bound(problem: ChainAllocation) -> None:
    """The bound that comes with it lies between the tables' value and its objective, counted independently."""
    grid, clock = Grid(problem), Clock(Limits(time=30))
    spans = Spans(problem, grid, problem.largest, clock)
    tables = run(problem, grid, spans, clock, problem.largest)
    for kind, usage in roots(tables, 8) if tables is not None else []:
        traced = follow(problem, grid, spans, tables, (kind, usage))
        value = None if traced is None else objective(problem, traced[1])
        if traced is not None and value is not None:
            assert int(tables.whole[kind, usage]) <= traced[0] <= value
