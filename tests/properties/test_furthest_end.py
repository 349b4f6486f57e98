"""The furthest-end programme against all allocations of small instances."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings

from helpers.allocations import brute_force, chain_allocations, every_allocation, meets_constraints, objective
from pipeplan_formulations.allocation import ChainAllocation, FurthestEnd
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.objective import OBJECTIVES
from pipeplan_formulations.common.report import Limits

TIME = Limits(time=60)


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=150, deadline=None)
def test_no_allocation_is_below_the_bound(problem: ChainAllocation) -> None:
    """The bound is at most the least objective, whatever the cutoff."""
    problem = replace(problem, first=(), last=())
    values = [
        value
        for stages in every_allocation(problem)
        if meets_constraints(problem, stages) and (value := objective(problem, stages)) is not None
    ]
    programme = FurthestEnd(problem, Clock(TIME))
    best = min(values, default=problem.largest + 1)
    assert programme.lower_bound(0, problem.largest + 1) <= best
    for cutoff in (best, best + 1, 2 * best) if values else ():
        assert programme.lower_bound(0, cutoff) <= min(best, cutoff)


@given(chain_allocations(objectives=OBJECTIVES))
@settings(max_examples=200, deadline=None)
def test_allocations_are_well_formed(problem: ChainAllocation) -> None:
    """Each holds every layer once, keeps to the cuts and the units, and fits unless the tables were optimistic."""
    problem = replace(problem, first=(), last=())
    for stages in FurthestEnd(problem, Clock(TIME)).allocations(0, problem.largest):
        assert (stages[0].start, stages[-1].end) == (0, problem.layers)
        assert all(a.end == b.start for a, b in pairwise(stages))
        assert meets_constraints(problem, stages)
        assert all(used <= units for used, units in zip(problem.usages(stages)[0], problem.units, strict=True))
        assert problem.feasible(stages)


def test_a_short_warm_up_counts_only_where_it_is_certain() -> None:
    """Where long transfers leave devices idle: with a choice of counts the warm-up has the most; none without 1F1B."""
    bound_by_few = 0
    for seed in range(80):
        problem = _with_long_transfers(np.random.default_rng(seed))
        best = brute_force(problem)
        fewest = brute_force(replace(problem, in_flight_rule="sno", alternating=True))
        assert best is not None and fewest is not None
        assert FurthestEnd(problem, Clock(TIME)).lower_bound(0, problem.largest + 1, 0.0) <= best
        bound_by_few += fewest > best
    assert bound_by_few > 20


def _with_long_transfers(rng: np.random.Generator) -> ChainAllocation:
    """A few layers on as many devices; where counts are a choice, the warm-up binds in the middle."""
    layers, most = (3, 3) if rng.random() < 0.5 else (int(rng.integers(2, 5)), 30)
    rule, alternating = (("non_increasing", True), ("non_increasing", True), ("sno", False), ("full", False))[
        rng.integers(4)
    ]
    return ChainAllocation(
        forward=rng.integers(5, 11, (1, layers)),
        backward=rng.integers(5, 11, (1, layers)),
        resident=np.ones((1, 1, layers), np.int64),
        saved=np.zeros(layers, np.int64),
        limit=np.full(1, layers // 2),  # two stages at least
        units=np.array([3]),
        node=np.full(1, 4),
        send=rng.integers(0, most + 1, (1, 1, 2, layers - 1)),
        send_back=rng.integers(0, most + 1, (1, 1, 2, layers - 1)),
        latency=np.full((1, 1, 2), most // 3),
        micro_batches=int(rng.integers(6, 11)),
        in_flight_rule=rule,
        alternating=alternating,
    )


def test_a_target_that_nothing_meets_needs_no_search() -> None:
    """Without time there is no bound beyond the known one, and no allocation."""
    problem = _like_a_network(40, 8)
    late = FurthestEnd(problem, Clock(Limits(time=0.0)))
    assert late.lower_bound(7, problem.largest) == 7
    assert late.allocations(7, problem.largest) == []


def test_bound_and_allocation_of_a_network_are_close() -> None:
    """On 60 unlike layers that have to recompute, the allocation is within 20 % of the bound, and is one that fits."""
    problem = _like_a_network(60, 8)
    programme = FurthestEnd(problem, Clock(TIME))
    bound = programme.lower_bound(0, problem.largest)
    best = min(problem.evaluate(stages) for stages in programme.allocations(bound, problem.largest))
    assert bound <= best <= 1.2 * bound


def _like_a_network(layers: int, units: int) -> ChainAllocation:
    """Unlike layers on two kinds of devices, and too little memory to save everything."""
    rng = np.random.default_rng(0)
    forward = rng.integers(650, 1350, (1, layers)) * np.array([[10], [21]])
    saved = rng.integers(65, 135, layers)
    return ChainAllocation(
        forward=forward,
        backward=2 * forward,
        reduce=np.tile(rng.integers(500, 1500, layers), (2, 1, 1)),
        resident=np.tile(rng.integers(200, 400, layers), (2, 1, 1)),
        saved=saved,
        output=np.full(layers, 8),
        workspace=np.full(layers, 10),
        recomputable=np.ones(layers, np.bool_),
        received=np.full(layers - 1, 8),
        limit=np.array([500 * layers // units, 400 * layers // units]),
        units=np.full(2, units // 2),
        node=np.full(2, 4),
        send=np.full((2, 2, 2, layers - 1), 100),
        send_back=np.full((2, 2, 2, layers - 1), 100),
        latency=np.full((2, 2, 2), 5),
        micro_batches=32,
    )
