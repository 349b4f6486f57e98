"""Sums over the tensors that cross the borders of a graph's stages."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import enters, graph_partitions, leaves
from pipeplan_formulations.graph import GraphPartition
from pipeplan_formulations.graph.crossing import Crossing
from pipeplan_formulations.graph.downsets import orders


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
