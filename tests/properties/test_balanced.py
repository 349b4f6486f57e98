"""Balanced partitions: they fit, no value is below the optimum, and most are close to it."""

import numpy as np
import pytest
from hypothesis import given, settings

from helpers.happening import happens
from helpers.partitions import brute_force, chain_partitions, fits, objective
from pipeplan_formulations.partition import ChainPartition, balanced


@pytest.mark.happens(0.3)
@settings(max_examples=150)
@given(chain_partitions())
def test_a_balanced_partition_fits_and_is_not_below_the_optimum(problem):
    boundaries = balanced(problem)
    best = brute_force(problem)
    if best is None:
        assert boundaries is None
    elif happens(boundaries is not None):
        assert fits(problem, boundaries)
        assert objective(problem, boundaries) >= best


def test_it_ends_where_nothing_takes_time():
    nothing = np.zeros((1, 2), np.int64)
    problem = ChainPartition(
        forward=nothing, backward=nothing, limit=np.array([9]), in_flight=np.array([1]), micro_batches=1
    )
    assert balanced(problem, most=1) == (0, 2)


def test_most_balanced_partitions_are_close_to_the_optimum():
    ratios = []

    @settings(max_examples=200)
    @given(chain_partitions(roomy=True, plain=True))
    def collect(problem):
        best, boundaries = brute_force(problem), balanced(problem)
        if best and boundaries is not None and problem.objective == "step":
            ratios.append(objective(problem, boundaries) / best)

    collect()
    assert len(ratios) > 50
    assert sorted(ratios)[len(ratios) // 2] < 1.1
