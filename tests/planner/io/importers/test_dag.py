"""Topological orders and strong components of directed graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeplan.core.errors import InputError
from pipeplan.io.importers.dag import components, reachable, topological

edge_sets = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20)


def test_ties_go_to_the_least_rank() -> None:
    """Among nodes that may come next the least comes first, however the edges are listed."""
    assert topological("dcba", [("d", "a"), ("c", "a")], rank=ord) == ["b", "c", "d", "a"]


def test_a_circle_is_named() -> None:
    """The error for a cyclic graph names the nodes."""
    with pytest.raises(InputError, match="circle among 1, 2"):
        topological([0, 1, 2], [(0, 1), (1, 2), (2, 1)], rank=int)


@given(edge_sets)
def test_components_are_those_that_reach_each_other(edges: list[tuple[int, int]]) -> None:
    """Two nodes share a component exactly if each can be reached from the other; fused, no circle is left."""
    after: dict[int, list[int]] = {node: [b for a, b in edges if a == node] for node in range(8)}
    component = components(range(8), edges)
    for a in range(8):
        for b in range(8):
            mutual = b in reachable(a, after) and a in reachable(b, after)
            assert (component[a] == component[b]) == mutual
    fused = [(component[a], component[b]) for a, b in edges if component[a] != component[b]]
    order = topological(set(component.values()), fused, rank=int)
    assert all(order.index(a) < order.index(b) for a, b in fused)
