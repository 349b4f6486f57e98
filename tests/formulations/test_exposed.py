"""What is exposed of a reduction: `Exposed` against its definition, against sums in buckets, and its properties."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.buckets import least_left
from helpers.partitions import exposed
from pipeplan_formulations.common.exposed import Exposed
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.mip.exposed import exposed_collectives
from pipeplan_formulations.common.mip.model import Expression, LinearModel
from pipeplan_formulations.common.report import Limits, Status

LAYER = st.tuples(st.sampled_from([0, 1, 3, 9, 20]), st.sampled_from([0, 2, 5, 12, 30]))
STAGES = st.lists(LAYER, min_size=1, max_size=7)
"""What each layer of a stage needs for its gradients, and hides of others."""
BASES = st.sampled_from([0, 1, 4, 15])


def of_spans(layers: list[tuple[int, int]], base: int) -> np.ndarray:
    """E(a, b) of all a ≤ b, 0 for others."""
    n = len(layers)
    reduce, hides = np.array(layers).T
    table = Exposed(reduce[None], hides[None], np.array([base]))
    a, b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    return table((0,), a, np.maximum(a, b)) * (a < b)


@given(STAGES, BASES)
def test_tables_equal_the_definition(layers, base):
    """E of every span is the largest over its layers, and 0 of an empty one."""
    found = of_spans(layers, base)
    for a, b in itertools.combinations_with_replacement(range(len(layers) + 1), 2):
        own = layers[a:b]
        assert found[a, b] == exposed([p for p, _ in own], [h for _, h in own], base)


@given(STAGES, BASES)
def test_no_buckets_expose_less(layers, base):
    """However a stage is cut into buckets, each of which takes the base, E or more is exposed (L7); E if it is 0."""
    bound = of_spans(layers, base)[0, -1]
    least = least_left(layers, base)
    assert bound <= least
    assert base or bound == least


@given(STAGES, BASES, st.integers(0, 9), st.integers(0, 6))
def test_properties(layers, base, more, at):
    """L1 to L6 of docs/bounds/collectives.md, on which prunings of partition and allocation problem rely."""
    found, n, i = of_spans(layers, base), len(layers), at % len(layers)
    plain = of_spans([(p, 0) for p, _ in layers], base)
    sums = np.cumsum([(0, 0), *layers], axis=0)
    for a, b in itertools.combinations(range(n + 1), 2):
        p, h = sums[b] - sums[a]
        assert b == n or found[a, b] <= found[a, b + 1]
        assert found[a + 1, b] <= found[a, b] + layers[a][1]
        assert found[a, b] >= p - h
        assert found[a, b] <= plain[a, b] == (p + base if p else 0)
    raised = [(p + more * (j == i), h) for j, (p, h) in enumerate(layers)]
    hidden = [(p, h + more * (j == i)) for j, (p, h) in enumerate(layers)]
    assert (found <= of_spans(raised, base)).all() and (found <= of_spans(layers, base + more)).all()
    assert (of_spans(raised, base) <= found + more + (0 if layers[i][0] else base)).all()
    assert (of_spans(hidden, base) <= found).all()


@pytest.mark.parametrize("solver", SOLVERS)
@given(layers=STAGES, base=BASES, unit=st.sampled_from([1, 1, 4]), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_linear_rows_equal_the_definition(solver, layers, base, unit, seed):
    """Where a model's stage holds given layers, the least time is E of them; in larger units it is no more."""
    a, b = sorted(np.random.default_rng(seed).choice(len(layers) + 1, 2, replace=False).tolist())
    model = LinearModel()
    inside = [Expression({model.boolean(int(a <= i < b), int(a <= i < b)): 1}) for i in range(len(layers))]
    reduce, hides = zip(*layers, strict=True)
    time = model.time(0, 2 * (sum(reduce) + base))
    model.minimize(time)
    model.at_least(Expression({time: 1}) - exposed_collectives(model, inside, reduce, hides, base, unit))
    answer = SOLVERS[solver].solve(model, Limits(time=30))
    expected = exposed(reduce[a:b], hides[a:b], base)
    assert answer.status is Status.OPTIMAL
    assert (answer.bound == expected) if unit == 1 else (answer.bound * unit <= expected)


@given(st.integers(0, 2**32 - 1))
def test_rows_of_any_shape(seed):
    """Rows of stages, and of kind and width with what is hidden by kind alone, are each as if they stood alone."""
    rng = np.random.default_rng(seed)
    reduce, hides = rng.integers(0, 9, (2, 3, 5)) * rng.integers(0, 2, (2, 3, 5)), rng.integers(0, 9, (2, 5))
    base = rng.integers(0, 9, (2, 3))
    table = Exposed(reduce, hides[:, None], base)
    c, w, a = rng.integers(0, 2, 20), rng.integers(0, 3, 20), rng.integers(0, 5, 20)
    b = np.minimum(a + rng.integers(1, 5, 20), 5)
    expected = [exposed(reduce[c, w, a:b], hides[c, a:b], base[c, w]) for c, w, a, b in zip(c, w, a, b, strict=True)]
    assert table((c, w), a, b).tolist() == expected
    assert table((int(c[0]), w), a, b)[0] == expected[0]
    stages = Exposed(reduce[0], np.tile(hides[0], (3, 1)), base[0])
    assert stages((w,), a, b)[c == 0].tolist() == np.array(expected)[c == 0].tolist()
