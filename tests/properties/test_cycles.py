"""Cycles between stages of the allocation problem: against brute force, and against schedules, of many micro-batches."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocations import brute_force, every_allocation, meets_constraints, objective
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation, Place
from pipeplan_formulations.common.report import Limits, Status


@st.composite
def problems(draw) -> ChainAllocation:
    """Few layers on devices of one or two kinds, of several widths, with many more micro-batches than are in flight."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers, kinds, top = draw(st.integers(2, 5)), draw(st.integers(1, 2)), draw(st.sampled_from([5, 100, 10**5]))
    hop = int(top * draw(st.sampled_from([0, 0.2, 1])))
    return ChainAllocation(
        forward=rng.integers(1, top + 1, (kinds, layers)),
        backward=rng.integers(1, 2 * top + 1, (kinds, layers)),
        saved=rng.integers(0, 10, layers),
        output=rng.integers(0, 5, layers),
        recomputable=rng.random(layers) < draw(st.sampled_from([0.0, 0.5])),
        limit=np.full(kinds, draw(st.sampled_from([2**40, 30, 60, 90, 120]))),
        units=rng.integers(1, 4, kinds) if kinds > 1 else rng.integers(2, 6, 1),
        node=rng.integers(1, 4, kinds),
        send=rng.integers(0, hop + 1, (kinds, kinds, 2, layers - 1)),
        latency=rng.integers(0, 3, (kinds, kinds, 2)),
        micro_batches=draw(st.integers(4, 40)),
        widths=draw(st.sampled_from([(1,), (1, 2), (1, 2, 3), (2, 3), (1, 3)])),
        overlap=draw(st.sampled_from(["none", "copy", "stream"])),
        in_flight_rule=draw(st.sampled_from(["sno", "so", "non_increasing"])),
        two_trips=True,
    )


@given(problems(), st.sampled_from([None, 0, 1, 50]))
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


@given(problems())
@settings(max_examples=60, deadline=None)
def test_values_equal_those_of_paths_walked_one_by_one(problem: ChainAllocation) -> None:
    """The closed form is the length of the path that follows one cycle after the other."""
    for stages in list(every_allocation(problem))[:40]:
        value = objective(problem, stages)
        if value is not None and meets_constraints(problem, stages):
            assert problem.evaluate(stages) == value


def unlike() -> tuple[ChainAllocation, tuple[Place, ...]]:
    """Balanced stages on 4 and 3 of 7 devices, of which the first holds 8 micro-batches and the second 3."""
    times = np.array([[4, 3]])
    problem = ChainAllocation(
        forward=times,
        backward=times,
        limit=np.array([2**40]),
        units=np.array([7]),
        node=np.array([7]),
        micro_batches=168,
        widths=(1, 2, 3, 4),
        two_trips=True,
    )
    return problem, (Place(0, 1, 0, 4), Place(1, 2, 0, 3))


def test_unlike_replicas_wait_for_each_other() -> None:
    """4 replicas hold 8, an excess of 1: a cycle of 14 advances by 8."""
    problem, stages = unlike()
    assert problem.in_flight_counts(stages) == [2, 1]
    # a first and a last trip of 14 each, and c = (167 - 8) // 8 cycles, which leave 7: one alternation of 8
    assert problem.evaluate(stages) == max(42 * 8 + 6, 14 + 14 + 19 * 14 + 8)


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
    """Six like layers on five devices with room for few micro-batches."""
    rng = np.random.default_rng(seed)
    times = rng.integers(50, 60, (1, 6))
    return ChainAllocation(
        forward=times,
        backward=2 * times,
        saved=np.ones(6, np.int64),
        output=np.zeros(6, np.int64),
        recomputable=np.zeros(6, np.bool_),
        limit=np.array([8]),
        units=np.array([5]),
        node=np.array([2]),
        send=rng.integers(5, 20, (1, 1, 2, 5)),
        micro_batches=60,
        widths=(1, 2, 3),
        in_flight_rule="non_increasing",
        two_trips=True,
    )
