"""Both back ends of the fractional chain partition against one linear programme per structure."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fractional_partitions import UNLIMITED, fractional_partitions, optimum
from helpers.happening import happens
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.fractional import FractionalPartition, cbc, exact

LIMITS = Limits(time=60, workers=1)


@given(fractional_partitions())
@settings(max_examples=180, deadline=None)
def test_the_exact_method_equals_brute_force(problem: FractionalPartition) -> None:
    """Values, bounds and infeasibility agree; if guesses of R stall, the bound still holds and the gap is reported."""
    best, report = optimum(problem), exact.solve(problem, LIMITS)
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert report.objective is not None
    assert report.solution is not None
    assert problem.feasible(report.solution)
    assert problem.evaluate(report.solution) <= report.objective * (1 + 2e-9) + 1
    assert report.bound <= best * (1 + 1e-8) + 1
    assert report.objective >= best * (1 - 1e-8) - 1
    if problem.objective == "bottleneck" or problem.stages == 1:
        assert report.status is Status.OPTIMAL
    if report.status is Status.OPTIMAL:
        assert abs(report.objective - best) <= 1e-8 * best + 1
    else:
        assert report.stop is Stop.GAP


@given(fractional_partitions(layers=3, cuts=2))
@settings(max_examples=50, deadline=None)
def test_cbc_equals_brute_force(problem: FractionalPartition) -> None:
    """With path cuts values agree too, to the accuracy of CBC."""
    _check_cbc(problem)


@pytest.mark.slow
@given(fractional_partitions(layers=5, stages=4, cuts=3))
@settings(max_examples=400, deadline=None)
def test_cbc_equals_brute_force_on_larger_instances(problem: FractionalPartition) -> None:
    """Values agree on up to five layers, four stages and three path cuts."""
    _check_cbc(problem)


def _check_cbc(problem: FractionalPartition) -> None:
    best = optimum(problem)
    report = cbc.solve(problem, LIMITS)
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert report.objective is not None
    if report.objective > best + 1e-5 * best + 1:  # memory is too tight for the solver's accuracy: a byte of it is left
        limit, on_chip = (np.where(size < UNLIMITED, size - 1, UNLIMITED) for size in (problem.limit, problem.on_chip))
        best_with_less = optimum(replace(problem, limit=limit, on_chip=on_chip))
        assert best_with_less is None or report.objective <= best_with_less + 1e-5 * best + 1
    assert report.objective >= best - 1e-5 * best - 1
    assert best - 1e-6 * best - 1 <= report.bound <= best * (1 + 1e-8) + 1


@given(fractional_partitions(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_shares_within_less_memory_may_be_off_by_the_tolerance(problem: FractionalPartition, seed: int) -> None:
    """What fits into the tightened problem, of layers of gigabytes, fits and stays on chip if its boundaries move."""
    draw = np.random.default_rng(seed)
    sizes = ("resident", "saved", "workspace", "weights", "bytes_through", "bytes_own")
    heavy = {"saved": ("saved", "bytes_through", "bytes_own")}.get(most := str(draw.choice(sizes[:4])), (most,))
    large = replace(problem, **{name: getattr(problem, name) * (10**6 if name in heavy else 1) for name in sizes})
    inner = np.sort(draw.uniform(0, problem.layers, problem.stages - 1))
    positions = (0.0, *inner.tolist(), float(problem.layers))
    full = np.full(problem.stages, 2**60)
    margin = 2**60 - cbc._tightened(replace(large, limit=full, on_chip=full)).limit
    needs = np.ceil(large.memory(positions)).astype(int), np.ceil(large.shares(positions) @ large.weights).astype(int)
    large = replace(large, limit=needs[0] + margin, on_chip=needs[1] + margin)
    assert cbc._tightened(large).feasible(positions)
    for way in (-1, 1):
        off = np.clip(inner + cbc.STEP * way * (-1) ** np.arange(len(inner)), 0, problem.layers)
        moved = (0.0, *np.sort(off).tolist(), float(problem.layers))
        assert large.feasible(moved) and not any(large.streamed(moved))


@pytest.mark.happens(0.3)
@given(fractional_partitions())
@settings(max_examples=100, deadline=None)
def test_dividing_layers_never_costs(problem: FractionalPartition) -> None:
    """No partition into whole layers is below the result; a tie is allowed."""
    inner = combinations(range(problem.layers + 1), problem.stages - 1)
    every = [(0.0, *map(float, cut), float(problem.layers)) for cut in inner]
    whole = min((problem.evaluate(p) for p in every if problem.feasible(p)), default=None)
    report = exact.solve(problem, LIMITS)
    if happens(whole is not None):
        assert report.bound <= whole * (1 + 1e-8) + 1
        assert report.status is Status.FEASIBLE or report.objective <= whole * (1 + 1e-8) + 1


@given(fractional_partitions())
@settings(max_examples=60, deadline=None)
def test_free_links_and_memory_balance_perfectly(problem: FractionalPartition) -> None:
    """On equal devices without limits the bottleneck is a share of the sum, however large a layer is."""
    stages = problem.stages
    equal = {
        name: np.tile(getattr(problem, name)[:1], (stages, 1))
        for name in ("forward", "backward", "forward_streamed", "backward_streamed", "update")
    }
    free = replace(
        problem,
        **equal,
        through=np.zeros_like(problem.through),
        own=np.zeros_like(problem.own),
        limit=np.full(stages, UNLIMITED),
        on_chip=np.full(stages, UNLIMITED),
        objective="bottleneck",
        two_lanes=False,
        ahead=None,
    )
    total = int((free.forward + free.backward)[0].sum())
    assert exact.solve(free, LIMITS).objective == -(-total // stages)
