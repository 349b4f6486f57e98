"""The shared branch-and-bound loop on random trees whose best leaf is known."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common.branch_and_bound import BranchAndBound, Step
from pipeplan_formulations.common.report import Limits, Stop


@dataclass
class Tree:
    """A node whose leaves are worth ``values``; ``bound`` is at most the least of them."""

    bound: int
    values: tuple[int, ...]
    rank: tuple[int, ...] = ()


@dataclass
class Leaves(BranchAndBound[Tree, int]):
    """The least of all leaves; now and then some are left unexamined."""

    random: Random = field(default_factory=Random)
    leaving: float = 0.0
    seen: list[tuple[int | None, int]] = field(default_factory=list)

    def advance(self, node: Tree) -> Step[Tree]:
        """Split the leaves at random."""
        if len(node.values) == 1:
            self.improve(node.values[0], node.values[0])
            return Step.nothing()
        cut = self.random.randint(1, len(node.values) - 1)
        parts = [self.tree(values, node.bound) for values in (node.values[:cut], node.values[cut:])]
        if self.random.random() < self.leaving:
            left = parts.pop()
            return Step.leave(left.bound, parts)
        return Step.split(parts)

    def tree(self, values: tuple[int, ...], bound: int) -> Tree:
        """A node of these leaves, with a bound no lower than before."""
        return Tree(self.random.randint(bound, max(bound, min(values))), values)


def searched(values: list[int], seed: int, gap: float, leaving: float) -> Leaves:
    """A search to its end."""
    search = Leaves(Limits(10.0, gap), lambda value, bound, _: search.seen.append((value, bound)))
    search.random, search.leaving = Random(seed), leaving
    search.push(search.tree(tuple(values), 0))
    search.run()
    return search


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5]))
@settings(max_examples=200, deadline=None)
def test_the_best_leaf_is_found_to_the_gap(values: list[int], seed: int, gap: float) -> None:
    """Where nothing is left out the answer is within the gap of the best leaf, and the bound never exceeds that."""
    search = searched(values, seed, gap, 0.0)
    assert search.value is not None
    assert search.bound <= min(values) <= search.value
    assert search.value - search.bound <= gap * search.value
    assert search.stop is (Stop.OPTIMALITY if search.bound == search.value else Stop.GAP)
    assert all(bound <= min(values) for _, bound in search.seen)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_what_is_left_unexamined_counts_in_the_bound(values: list[int], seed: int) -> None:
    """With leaves left out the bound still holds for all of them, and nothing is called refuted."""
    search = searched(values, seed, 0.0, 0.4)
    assert search.bound <= min(values)
    assert not search.refuted
    if search.value is None or search.bound < search.value:
        assert search.stop is Stop.EXHAUSTED


def test_no_node_refutes_and_no_time_leaves_all_open() -> None:
    """Without nodes there is proved to be no solution; without time the first bound stands."""
    search = Leaves(Limits(10.0))
    search.run()
    assert (search.refuted, search.stop, search.bound) == (True, Stop.OPTIMALITY, 0)
    search = Leaves(Limits(0.0))
    search.push(Tree(7, (9,)))
    search.run()
    assert (search.refuted, search.stop, search.bound) == (False, Stop.TIME, 7)


def test_the_newest_of_equal_nodes_comes_first_where_that_is_asked_for() -> None:
    """Ties are broken by age, either way."""

    class Newest(Leaves):
        NEWEST_FIRST = True

    for kind, first in ((Leaves, 3), (Newest, 5)):
        search = kind(Limits(10.0))
        for value in (3, 5):
            search.push(Tree(1, (value,)))
        search.step()
        assert search.value == first
