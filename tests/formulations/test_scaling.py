"""Scaled tables: they fit the solver, and their bounds stay bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.partitions import every_partition, random_chain
from pipeplan_formulations.common.scaling import BITS, Scale, scale_for
from pipeplan_formulations.partition.linear import linear_model

TIMES = st.lists(st.integers(0, 2**40), min_size=1, max_size=20)


@given(st.integers(0, 2**90), st.integers(1, 60))
def test_largest_objective_stays_below_the_power_of_two(largest, bits):
    """The largest objective fits, with the finest unit that makes it fit."""
    scale = scale_for(largest, bits)
    assert scale.down(largest) < 2**bits
    assert scale.exact or largest // (scale.unit - 1) >= 2**bits


@given(TIMES, st.lists(st.integers(0, 600), min_size=20, max_size=20), st.integers(1, 30))
def test_scaled_sums_bound_sums_from_below(times, coefficients, bits):
    """Sums of rounded entries, scaled back, never exceed the sums of the entries."""
    true = sum(c * t for c, t in zip(coefficients, times, strict=False))
    scale = scale_for(true, bits)
    rounded = scale.down(np.array(times, np.int64))
    assert scale.up(sum(c * int(t) for c, t in zip(coefficients, rounded, strict=False))) <= true


def test_small_instances_are_exact():
    """Below the power of two nothing is rounded."""
    assert scale_for(2**BITS - 1) == Scale(1)
    assert not scale_for(2**BITS).exact


@pytest.mark.parametrize("arguments", [(-1,), (10, 0), (10, 61)])
def test_invalid_scales_are_refused(arguments):
    """A negative largest value or too few or too many bits raise ValueError."""
    with pytest.raises(ValueError, match=r"largest|bits"):
        scale_for(*arguments)


@pytest.mark.parametrize("overlap", ["none", "copy", "stream"])
@pytest.mark.parametrize("unit", [1, 7, 1000, 10**6])
def test_rows_in_any_unit_bound_the_objective(overlap, unit):
    """Every partition satisfies the scaled rows with T its objective rounded up: so scaled optima are lower bounds."""
    problem = random_chain(3, 3, 6, links=2_000_000, overlap=overlap)
    model = linear_model(problem, Scale(unit), 0, problem.largest)
    for boundaries in every_partition(problem):
        point = model.point(problem, boundaries, -(-problem.evaluate(boundaries) // unit))
        for row in model.rows:
            value = row.expression.value(point)
            assert value == 0 if row.equal else value >= 0
        assert all(low <= x <= high for low, x, high in zip(model.lows, point, model.highs, strict=True))
        assert model.boundaries(point, problem.layers) == boundaries
