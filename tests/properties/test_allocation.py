"""The chain allocation problem against brute force on small instances of every sort."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocations import (
    brute_force,
    chain_allocations,
    every_allocation,
    meets_constraints,
    memory,
    objective,
    units_used,
)
from helpers.happening import happens
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation
from pipeplan_formulations.allocation.joined import together
from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.common.span_options import IMPOSSIBLE


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=150, deadline=None)
def test_the_dynamic_programme_and_search_equal_brute_force(problem: ChainAllocation) -> None:
    """Objective, bound and status are those of all allocations tried one by one, infeasible instances included."""
    best = brute_force(problem)
    report = allocation.solve(problem, Limits(time=30))
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert (report.status, report.objective, report.bound) == (Status.OPTIMAL, best, best)
    assert report.solution is not None
    assert meets_constraints(problem, report.solution)
    assert objective(problem, report.solution) == best


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=100, deadline=None)
def test_memory_and_value_equal_an_independent_evaluation(problem: ChainAllocation) -> None:
    """The formulation and an independent evaluation agree on every allocation: fit, recomputation, value."""
    for stages in list(every_allocation(problem))[:40]:
        value = objective(problem, stages)
        assert problem.feasible(stages) == (value is not None and meets_constraints(problem, stages))
        if value is None:
            continue
        assert problem.evaluate(stages) == value
        for s, again in enumerate(problem.recompute(stages)):
            assert again is not None
            assert memory(problem, stages, s, again) <= problem.limit[stages[s].kind]


def check_frontier(problem: ChainAllocation) -> None:
    """No allocation beats an entry for the units that it uses; one is impossible if none fits, and the least loads."""
    bounds = allocation.frontier(problem, Limits(time=30))
    best: dict[tuple[int, ...], int] = {}
    for stages in every_allocation(problem):
        value = objective(problem, stages)
        if value is None or not meets_constraints(problem, stages):
            continue
        used = units_used(problem, stages)
        best[used] = min(best.get(used, IMPOSSIBLE), value)
    for used in np.ndindex(*bounds.shape):
        assert bounds[used] <= best.get(used, IMPOSSIBLE)
        assert (bounds[used] == IMPOSSIBLE) == (used not in best)
        if problem.objective == "bottleneck" and used in best:
            assert bounds[used] == best[used]


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=100, deadline=None)
def test_the_frontier_bounds_every_number_of_units(problem: ChainAllocation) -> None:
    """No allocation beats the frontier's entry for the units that it uses, and an entry is impossible if none fits."""
    check_frontier(problem)


@given(chain_allocations(layers=5, objectives=("bottleneck",)), st.integers(20, 60), st.sampled_from([7, 11]))
@settings(max_examples=60, deadline=None)
def test_links_that_are_slow_are_rounded_as_loads_are(problem: ChainAllocation, slower: int, samples: int) -> None:
    """The same where links are the bottleneck, of steps of a number of samples that divides no time."""
    send, back = slower * problem.send + 50, slower * problem.send_back
    check_frontier(replace(problem, send=send, send_back=back, overlap="copy", samples=samples))


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=50, deadline=None)
def test_no_time_still_gives_a_bound(problem: ChainAllocation) -> None:
    """With no time at all the bound never exceeds the optimum, and an incumbent, if any, is a real one."""
    best = brute_force(problem)
    report = allocation.solve(problem, Limits(time=0.0))
    if best is None:
        assert report.status in (Status.INFEASIBLE, Status.UNKNOWN)
        return
    assert report.bound <= best
    if report.solution is not None:
        assert objective(problem, report.solution) == report.objective


@pytest.mark.happens(0.3)
@given(chain_allocations(objectives=OBJECTIVES), st.integers(-3, 3))
@settings(max_examples=100, deadline=None)
def test_a_cutoff_saves_work_and_loses_nothing_below_it(problem: ChainAllocation, offset: int) -> None:
    """An optimum below the cutoff is found and proved; otherwise the bound reaches the cutoff, not the optimum."""
    optimum = brute_force(problem)
    cutoff = max(0, (0 if optimum is None else optimum) + offset)
    report = allocation.solve(problem, Limits(time=30), cutoff=cutoff)
    if optimum is None:
        assert report.solution is None
    elif happens(optimum < cutoff):
        assert (report.status, report.objective, report.bound) == (Status.OPTIMAL, optimum, optimum)
    else:
        assert cutoff <= report.bound <= optimum


def elsewhere(problem: ChainAllocation, rng: np.random.Generator) -> ChainAllocation:
    """The problem with other units, nodes, hops, sums and resident bytes."""
    tables = {"units": np.maximum(problem.units + rng.integers(-1, 2, len(problem.units)), 0)}
    tables |= {"node": rng.integers(1, 4, len(problem.node))}
    for name in ("send", "send_back", "latency", "reduce", "resident"):
        tables[name] = getattr(problem, name) * rng.integers(0, 3) // 2
    return replace(problem, **tables)


@given(chain_allocations(layers=5, objectives=("step", "period", "delayed")), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_one_problem_in_place_of_several_is_no_worse_than_any(problem: ChainAllocation, seed: int) -> None:
    """Where units, nodes, hops, sums and bytes differ: no best allocation of one is better than the joint one."""
    rng = np.random.default_rng(seed)
    problem = replace(problem, first=(), last=())
    members = [problem, elsewhere(problem, rng), elsewhere(problem, rng)]
    least = brute_force(together(members))
    for each in members:
        value = brute_force(each)
        assert value is None or (least is not None and least <= value)
