"""DeepSpeed's dynamic programme, on parameters and on times."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.partitioners.deepspeed import smallest_range


def cell_by_cell(weights: list[int], stages: int) -> tuple[int, ...]:
    """The programme as one would write it down: every cell keeps one cut, the last of those with the least range."""
    n = len(weights)
    cell = {(0, 0): (0.0, math.inf, (0,))}
    for j in range(1, stages + 1):
        for i in range(j, n + 1):
            least = math.inf
            for k in range(j - 1, i):
                if (k, j - 1) not in cell:
                    continue
                high, low, edges = cell[k, j - 1]
                last = sum(weights[k:i])
                top, bottom = max(high, last), min(low, last)
                if top - bottom <= least:
                    least = top - bottom
                    cell[i, j] = (top, bottom, (*edges, i))
    return cell[n, stages][2]


def ranges(weights: list[int], stages: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """(range, maximum) of every partition into stages of at least one layer."""
    n = len(weights)
    found = {}
    for inner in combinations(range(1, n), stages - 1):
        sums = [sum(weights[a:b]) for a, b in pairwise((0, *inner, n))]
        found[0, *inner, n] = (max(sums) - min(sums), max(sums))
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=12), st.integers(1, 11))
def test_equals_the_programme_cell_by_cell(weights: list[int], stages: int) -> None:
    """The matrix form makes the same cuts as the cell-by-cell form, ties included."""
    stages = min(stages, len(weights) - 1)
    assert smallest_range(np.array(weights), stages) == cell_by_cell(weights, stages)


def test_it_is_not_the_smallest_maximum() -> None:
    """[1, 6, 3, 3] into 3: loads 7, 3, 3 have a smaller range than 1, 6, 6, and a larger maximum."""
    found = ranges([1, 6, 3, 3], 3)
    chosen = smallest_range(np.array([1, 6, 3, 3]), 3)
    assert found[chosen] == (4, 7)
    assert min(largest for _, largest in found.values()) == 6


def test_it_is_not_even_the_smallest_range() -> None:
    """[2, 2, 4, 1, 5] into 4: one cut a cell leads to a range of 4 (4, 4, 1, 5) where 3 is possible (2, 2, 5, 5)."""
    found = ranges([2, 2, 4, 1, 5], 4)
    chosen = smallest_range(np.array([2, 2, 4, 1, 5]), 4)
    assert found[chosen] == (4, 5)
    assert min(spread for spread, _ in found.values()) == 3


@pytest.mark.parametrize(("layers", "stages", "expected"), [(3, 5, (0, 1, 2, 3, 3, 3)), (4, 4, (0, 1, 2, 3, 4))])
def test_few_layers_are_spread_evenly(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    """With no more layers than stages the weights do not matter: one layer a stage, the last stages empty."""
    assert smallest_range(np.arange(layers), stages) == expected


def test_parameters_weighs_parameters_only() -> None:
    """One layer with all the time and no parameters moves no cut of the default balancer, but moves the timed one."""
    chain = make_chain([1, 1, 1, 1, 100], devices=2, parameters=[10, 10, 10, 10, 0])
    assert PARTITIONERS["parameters"].balance(chain, 4) == (0, 2, 5)
    assert PARTITIONERS["deepspeed-time"].balance(chain, 4) == (0, 4, 5)


def test_five_equal_layers_leave_no_stage_empty() -> None:
    """[1] * 5 into 4 gives 2, 1, 1, 1, where DeepSpeed's earlier probe left the last stage empty."""
    assert smallest_range(np.ones(5, np.int64), 4) == (0, 2, 3, 4, 5)
