"""Minimum cuts: the bytes sent are the fewest that suffice."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan.frontend.capture.graph.crossing import fewest_bytes

MAX_NODES = 7


@st.composite
def computations(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[int | None], set[int]]:
    """A graph in topological order: each node's parents, its bytes (None: cannot be sent), and the wanted nodes."""
    count = draw(st.integers(1, MAX_NODES))
    parents = [tuple(draw(st.sets(st.integers(0, n - 1), max_size=2))) if n else () for n in range(count)]
    size = [draw(st.integers(1, 9)) if not parents[n] else draw(st.none() | st.integers(1, 9)) for n in range(count)]
    wanted = draw(st.sets(st.integers(0, count - 1), min_size=1))
    return parents, size, wanted


def computable(chosen: set[int], parents: list[tuple[int, ...]]) -> set[int]:
    """All nodes that can be computed from the chosen ones; a node without parents must be chosen."""
    known = set[int]()
    for node, above in enumerate(parents):
        if node in chosen or (above and known.issuperset(above)):
            known.add(node)
    return known


def least_by_trying(parents: list[tuple[int, ...]], size: list[int | None], wanted: set[int]) -> int:
    """Fewest bytes over all sets of nodes from which the wanted nodes can be computed."""
    sendable = [node for node, width in enumerate(size) if width is not None]
    sets = (set(some) for k in range(len(sendable) + 1) for some in combinations(sendable, k))
    return min(sum(size[n] or 0 for n in some) for some in sets if wanted <= computable(some, parents))


@given(computations())
@settings(max_examples=150, deadline=None)
def test_fewest_bytes_equal_the_best_of_all_sets(
    case: tuple[list[tuple[int, ...]], list[int | None], set[int]],
) -> None:
    """The sent nodes suffice, and no other sufficient set has fewer bytes."""
    parents, size, wanted = case
    chosen = fewest_bytes(wanted, lambda node: parents[node], dict(enumerate(size)))
    assert wanted <= computable(chosen, parents)
    assert sum(size[n] for n in chosen) == least_by_trying(parents, size, wanted)  # type: ignore[misc]


@given(computations(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_later_cut_can_be_served_from_an_earlier_one(
    case: tuple[list[tuple[int, ...]], list[int | None], set[int]], data: st.DataObject
) -> None:
    """Nodes sent for fewer wanted nodes can be computed from nodes sent for more wanted nodes."""
    parents, size, wanted = case
    fewer = data.draw(st.sets(st.sampled_from(sorted(wanted)), min_size=1))
    early, late = (fewest_bytes(some, lambda node: parents[node], dict(enumerate(size))) for some in (wanted, fewer))
    assert late <= computable(early, parents)
