"""The Pareto filter against comparing every pair."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations.common import pareto
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


def test_many_labels_are_sieved_within_their_groups(monkeypatch):
    """Where one number spans far more than the other, what is kept is that of each group by itself."""
    monkeypatch.setattr(pareto, "BLOCK", 1)
    random = np.random.default_rng(0)
    groups, spans = random.integers(0, 4, 60), [(1000, 3), (3, 1000)]
    for first, second in ((random.integers(0, a, 60), random.integers(0, b, 60)) for a, b in spans):
        kept = [tuple(row) for row in np.stack([groups, first, second])[:, undominated(groups, first, second)].T]
        rows = set(zip(groups.tolist(), first.tolist(), second.tolist(), strict=True))
        beaten = {p for p in rows for q in rows if q != p and q[0] == p[0] and q[1] <= p[1] and q[2] <= p[2]}
        assert kept == sorted(rows - beaten)


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
