"""Least crossings at the borders of a graph's stages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import enters, graph_partitions, leaves
from pipeplan_formulations.graph import GraphMode, GraphPartition, Line, Star
from pipeplan_formulations.graph.by_places import Relaxation
from pipeplan_formulations.graph.crossing import Crossing
from pipeplan_formulations.graph.downsets import orders
from pipeplan_formulations.graph.mode import Array

COSTS = (4, 1, 2)
"""Of the skip, the first and the second tensor."""


def chain_with_skip(turned: bool) -> GraphPartition:
    """Three groups for three devices, with a tensor from the first to the last; ``turned``: as gradients."""
    ends = ((0, 2), (0, 1), (1, 2))
    stars = tuple(Star(b, (a,)) if turned else Star(a, (b,)) for a, b in ends)
    time, cost = np.array([[10, 12, 10]]), np.array(COSTS)
    return GraphPartition(3, ends, stars, (3,), (GraphMode("one", (1,), (Line(time, cost, cost),)),))


@pytest.mark.parametrize("turned", [False, True])
def test_a_skip_counts_where_it_ends_and_not_in_between(turned: bool) -> None:
    """The optimum is 15, one group per device; its windows have one place, so cuts are the exact crossings."""
    relaxation = Relaxation(chain_with_skip(turned), 15).below((0, 0, 0), closed=True)
    expected: Array = np.array([4 + 1, 1 + 2, 4 + 2])
    assert np.allclose(relaxation.crossing * 15, expected)


@settings(max_examples=100, deadline=None)
@given(graph_partitions(), st.integers(0, 2**32))
def test_sums_over_stars_are_those_of_the_definition(problem: GraphPartition, seed: int) -> None:
    """For each stage between places of an order: the weights of the tensors that leave it, and that enter it."""
    order = orders(problem, 3, seed=seed)[-1]
    weights = np.random.default_rng(seed).integers(0, 50, len(problem.stars))
    crossing = Crossing(problem, order)
    for end in range(1, len(order) + 1):
        leave, enter = crossing.leave(weights, end), crossing.enter(weights, end)
        for start in range(end):
            parts = frozenset(order[:start]), tuple(order[start:end]), frozenset(order[end:])
            stars = list(zip(weights.tolist(), problem.stars, strict=True))
            assert leave[start] == sum(weight for weight, star in stars if leaves(problem, star, *parts))
            assert enter[start] == sum(weight for weight, star in stars if enters(problem, star, *parts))
