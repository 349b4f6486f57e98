"""The Pareto filter against comparing every pair."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common.pareto import minimal, spread, undominated

labels = st.lists(st.tuples(*(st.integers(0, 4) for _ in range(4))), min_size=1, max_size=25)


@given(labels, st.booleans())
@settings(max_examples=400, deadline=None)
def test_what_is_kept_is_what_no_other_matches(rows, has_third):
    """Kept labels are distinct, none dominates another, and a kept label dominates every dropped one."""
    groups, first, second, third = (np.array(column) for column in zip(*rows, strict=True))
    if not has_third:
        third = np.zeros_like(third)
    kept = undominated(groups, first, second, third if has_third else None)

    def matches(i, j):
        better = first[i] <= first[j] and second[i] <= second[j] and third[i] >= third[j]
        return groups[i] == groups[j] and better

    assert not any(matches(i, j) for i in kept for j in kept if i != j)
    assert all(any(matches(i, j) for i in kept) for j in range(len(rows)))
    assert (np.diff(groups[kept]) >= 0).all()


def test_spread_keeps_the_first_and_few_of_each_group():
    """A large group keeps some labels spread over it, and a small group keeps all."""
    groups = np.array([1] * 10 + [2] * 3)
    kept = spread(groups, 4)
    assert kept[:10].sum() == 4
    assert kept[0]
    assert kept[10:].all()


@given(st.lists(st.tuples(*(st.integers(0, 3) for _ in range(3))), max_size=40))
@settings(max_examples=200, deadline=None)
def test_minimal_points_are_found_with_and_without_arrays(rows):
    """Kept points are, in lexicographic order, the first of each point that no other point dominates."""
    expected = sorted(
        {p for p in rows if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in rows)}
    )
    for points in (rows, np.array(rows, np.int64).reshape(len(rows), 3)):
        kept = minimal(points)
        assert [rows[i] for i in kept] == expected
        assert [rows.index(rows[i]) for i in kept] == list(kept)
