"""Layers at a price: bounds on the work before and behind every stage, against all allocations of small instances."""

from itertools import accumulate

import numpy as np
import pytest

from helpers.allocations import backwards, brute_force, every_allocation, objective
from helpers.quick import QUICK
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import Allocation, ChainAllocation, FurthestEnd
from pipeplan_formulations.allocation.furthest_end import priced_layers
from pipeplan_formulations.allocation.furthest_end import stages as tables
from pipeplan_formulations.allocation.furthest_end.priced_layers import PricedLayers
from pipeplan_formulations.allocation.furthest_end.reach import Reach
from pipeplan_formulations.allocation.furthest_end.stages import StageTables
from pipeplan_formulations.allocation.suffix_bounds import refinement
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status

SEEDS = range(14 if QUICK else 600)
LONG = Limits(time=600)


def instance(seed: int) -> ChainAllocation:
    """A few unlike layers on one kind or two, of which the slower one is needed, with too little memory to save all."""
    rng = np.random.default_rng(seed)
    layers, kinds = int(rng.integers(3, 6)), int(rng.integers(1, 3))
    widths = ((1,), (1, 2), (2,))[rng.integers(3)]
    units = rng.integers(1, 3, kinds) * (1 if kinds == 2 or widths == (2,) else 2) * widths[0]
    forward = rng.integers(5, 20, (1, layers)) * np.array([[10], [10 + rng.integers(2, 20)]])[:kinds]
    forward = forward * rng.integers(9, 12, (kinds, layers)) // 10
    saved = rng.integers(5, 15, layers)
    alternating, rule = ((True, "non_increasing"), (True, "sno"), (False, "full"), (False, "fbp"))[rng.integers(4)]
    table = (kinds, len(widths), layers)
    return ChainAllocation(
        forward=forward,
        backward=forward * rng.integers(1, 3) + rng.integers(0, 30, (kinds, layers)),
        update=rng.integers(0, 30, table),
        reduce=rng.integers(0, 60, table),
        hides=np.zeros((kinds, layers), np.int64),
        resident=rng.integers(1, 10, (1, 1, layers)).repeat(kinds, 0).repeat(len(widths), 1),
        saved=saved,
        output=rng.integers(1, 4, layers),
        workspace=rng.integers(0, 3, layers),
        recomputable=rng.random(layers) < 0.8,
        received=rng.integers(0, 4, layers - 1),
        limit=rng.integers(20, 90, kinds),
        cuts=rng.random(layers - 1) < 0.9,
        units=units,
        node=np.full(kinds, 2),
        send=rng.integers(0, 20, (kinds, kinds, 1, layers - 1)).repeat(2, 2),
        latency=rng.integers(0, 5, (kinds, kinds, 1)).repeat(2, 2),
        micro_batches=int(rng.integers(2, 14)),
        widths=widths,
        overlap=("copy", "none", "stream")[rng.integers(3)],
        objective=("step", "period")[rng.integers(2)],
        in_flight_rule=rule,
        alternating=alternating,
        two_trips=seed % 3 > 0,
    )


def plain(programme: FurthestEnd, monkeypatch: pytest.MonkeyPatch) -> FurthestEnd:
    """The programme without prices."""
    monkeypatch.setattr(type(programme), "_prices", property(lambda _: False))
    return programme


def test_no_allocation_is_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the nanosecond, however wide ranges of counts are; and layers at a price raise the bound of many instances."""
    raised = 0
    for seed in SEEDS:
        if seed % 2:
            monkeypatch.setattr(tables, "COUNTS", 1)
            monkeypatch.setattr(priced_layers, "COUNTS", 1)
        problem = instance(seed)
        best = brute_force(problem)
        high = problem.largest + 1 if best is None else best + 2
        bound = FurthestEnd(problem, Clock(LONG)).lower_bound(0, high, 0.0)
        assert best is None or bound <= best, seed
        with monkeypatch.context() as patch:
            raised += plain(FurthestEnd(problem, Clock(LONG)), patch).lower_bound(0, high, 0.0) < bound
        monkeypatch.undo()
    assert raised > len(SEEDS) // 8


def test_work_before_and_behind_each_stage_is_at_least_as_stated() -> None:
    """Of every allocation within the target, at every stage: H, A, A by the stage's own end, and C."""
    checked = 0
    for seed in SEEDS:
        problem = instance(seed)
        values = [(value, own) for own in every_allocation(problem) if (value := objective(problem, own)) is not None]
        target = min((value for value, _ in values), default=0) * (10 + seed % 4) // 10
        grid, reach = Grid(problem, flow=False), Reach(problem)
        priced = None
        for value, stages in values:
            if value <= target and all(problem.cuts[place.start - 1] for place in stages[1:]):
                if priced is None:
                    tables, trip = StageTables(problem, grid), int(reach.least_work[-1])
                    priced = PricedLayers(problem, grid, tables, reach, target, trip, Clock(LONG))
                _check(problem, grid, priced, stages)
                checked += 1
    assert checked > len(SEEDS)


def _check(problem: ChainAllocation, grid: Grid, priced: PricedLayers, stages: Allocation) -> None:
    """No bound for these stages exceeds the work of the others."""
    tables, steps = StageTables(problem, grid), [int(grid.step(place.kind, place.width)) for place in stages]
    forward = [int(problem.forward[place.kind, place.start : place.end].sum()) for place in stages]
    work = [f + b for f, b in zip(forward, backwards(problem, stages), strict=True)]
    before = [0, *accumulate(work)]
    assert priced.trip <= before[-1]
    for s, place in enumerate(stages):
        usage, behind = np.array([sum(steps[s:])]), np.array([sum(steps[s + 1 :])])
        flow = grid.total[usage]
        own = tables.modes(np.array([place.kind]), np.array([problem.widths.index(place.width)]), flow, flow)
        start, end = np.array([place.start]), np.array([place.end])
        assert int(priced.heads(own, usage, start)[0]) <= before[s]
        trips = priced.trips(own, usage, behind, start)
        assert int(trips.through(np.array([0]), end, np.array([work[s]]))[0]) <= before[-1]
        head, rest = trips.behind(np.array([0]), end, own.share - own.most)
        assert int(head[0]) <= before[s] and int(rest[0]) <= before[-1] - before[s + 1]


def test_programmes_below_the_most_delay_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first programme is limited by what layers at a price leave: an optimum below the cutoff is proved."""
    monkeypatch.setattr(refinement, "SMALL", 0)
    limited = 0
    for seed in SEEDS:
        problem = instance(seed)
        best = brute_force(problem)
        if best is None:
            continue
        for cutoff in (best, best + 1, 6 * best // 5):
            report = allocation.solve(problem, LONG, cutoff=cutoff)
            if cutoff == best:
                assert report.bound == best, seed
            else:
                assert (report.status, report.objective, report.bound) == (Status.OPTIMAL, best, best), seed
        limited += FurthestEnd(problem, Clock(LONG)).least_trip(best) > int(Reach(problem).least_work[-1])
    assert limited > len(SEEDS) // 8


@pytest.mark.parametrize("part", [1, 3, 8])
def test_ranges_hold_every_count_of_a_stage_once(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """From the fewest, which memory counts, to the most, which the warm-up counts."""
    monkeypatch.setattr(tables, "COUNTS", part)
    for seed in range(20):
        own = StageTables(instance(seed), Grid(instance(seed), flow=False))
        for every, ranged in zip(own.levels, own.by_counts, strict=True):
            assert sorted(_counts(ranged)) == sorted(_counts(every))


def _counts(every: tables.Stages) -> list[tuple[int, ...]]:
    """Kind, width, usage and count of stages, for each of their counts."""
    rows = zip(every.kind.tolist(), every.w.tolist(), every.usage.tolist(), every.least, every.most, strict=True)
    return [(kind, w, usage, k) for kind, w, usage, least, most in rows for k in range(least, most + 1)]
