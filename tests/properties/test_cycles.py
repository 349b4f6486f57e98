"""Cycles between stages of the allocation problem, of many micro-batches, against brute force and schedules."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocations import brute_force, every_allocation, meets_constraints, objective
from helpers.many_micro_batches import many_micro_batches
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation
from pipeplan_formulations.common.report import Limits, Status


@given(many_micro_batches(), st.sampled_from([None, 0, 1, 50]))
@settings(max_examples=120, deadline=None)
def test_the_programmes_equal_brute_force(problem: ChainAllocation, beyond: int | None) -> None:
    """The optimum, alone and with a cutoff at it or behind it."""
    best = brute_force(problem)
    cutoff = None if beyond is None or best is None else best + (beyond if beyond < 2 else best // beyond)
    report = allocation.solve(problem, Limits(time=30), cutoff=cutoff)
    if best is None:
        assert report.status is Status.INFEASIBLE
    elif cutoff == best:
        assert report.bound <= best
    else:
        assert (report.objective, report.bound) == (best, best)


@given(many_micro_batches())
@settings(max_examples=60, deadline=None)
def test_values_equal_those_of_paths_walked_one_by_one(problem: ChainAllocation) -> None:
    """The closed form is the length of the path that follows one cycle after the other."""
    for stages in list(every_allocation(problem))[:40]:
        value = objective(problem, stages)
        if value is not None and meets_constraints(problem, stages):
            assert problem.evaluate(stages) == value


def test_cycles_raise_the_optimum(monkeypatch) -> None:
    """Of some problems the bound is above that of two trips, and so is the optimum."""

    def bounds() -> list[int]:
        return [allocation.solve(crowded(seed), Limits(time=30)).bound for seed in range(8)]

    own = bounds()
    monkeypatch.setattr("pipeplan_formulations.allocation.tables.MOST_WITH_CYCLES", 0)
    plain = bounds()
    assert all(a >= b for a, b in zip(own, plain, strict=True))
    assert sum(a > b for a, b in zip(own, plain, strict=True)) >= 2


def crowded(seed: int) -> ChainAllocation:
    """Six like layers on six devices with room for few micro-batches."""
    rng = np.random.default_rng(seed)
    times = rng.integers(50, 60, (1, 6))
    return ChainAllocation(
        forward=times,
        backward=2 * times,
        saved=np.ones(6, np.int64),
        output=np.zeros(6, np.int64),
        recomputable=np.zeros(6, np.bool_),
        limit=np.array([8]),
        units=np.array([6]),
        node=np.array([2]),
        send=rng.integers(20, 41, (1, 1, 2, 5)),
        micro_batches=60,
        widths=(1, 2, 3),
        in_flight_rule="non_increasing",
        two_trips=True,
    )
