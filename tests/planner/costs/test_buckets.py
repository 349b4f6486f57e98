"""The best buckets against every way to cut a stage's gradients into buckets, event by event."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.buckets import every_cut, least_left, left, slowed
from pipeplan.core.pipeline import Bucket, exposed
from pipeplan.costs.buckets import best_buckets, given_buckets
from pipeplan.costs.collectives import lost

TIMES = st.one_of(st.integers(0, 3), st.integers(0, 40))
LAYERS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8)


@given(LAYERS, st.integers(0, 20))
def test_no_other_cut_ends_earlier(layers: list[tuple[int, int]], base: int) -> None:
    best = least_left(layers, base)
    times, hides = zip(*layers, strict=True)
    found = best_buckets(times, hides, base)
    assert exposed(found) == best
    if found:
        assert sum(bucket.layers for bucket in found) == len(layers)
        assert left(layers, [bucket.layers for bucket in found], base) == best
    else:
        assert not any(times)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(0, 20), st.integers(1, 4))
def test_a_slower_backward_loses_the_same_whatever_is_exposed(
    layers: list[tuple[int, int]], base: int, quarters: int
) -> None:
    """The exposed part of shorter sums, and what is lost beside them, are what the clock says: of every cut."""
    times, hides = (np.array(row) for row in zip(*layers, strict=True))
    times *= 4  # so that nothing is rounded
    rest, speed = lost(times, quarters / 4), Fraction(quarters, 4)
    shorter, whole = tuple((times - rest).tolist()), list(zip(times.tolist(), hides.tolist(), strict=True))
    every = {sizes: slowed(whole, sizes, base, speed) for sizes in every_cut(len(layers))}
    for sizes, later in every.items():
        assert exposed(given_buckets(shorter, hides.tolist(), base, sizes)) + rest.sum() == later
    assert exposed(best_buckets(shorter, tuple(hides.tolist()), base)) + rest.sum() == min(every.values())


def test_what_is_lost_is_rounded_down() -> None:
    """So something is left to hide of every collective; where nothing computes beside it, nothing is lost."""
    times = np.array([0, 1, 9, 10, 2**58])
    assert lost(times, 0.3).tolist() == [0, 0, 6, 7, 7 * 2**58 // 10]
    assert lost(times, 0.001).tolist() == [0, 0, 8, 9, 999 * 2**58 // 1000]
    assert not lost(times, 0).any()
    assert not lost(times, 1.0).any()


def test_a_stage_without_gradients_has_no_buckets() -> None:
    assert best_buckets((0, 0), (5, 5), 3) == ()
    assert exposed(()) == 0


def test_nothing_hides_where_the_backward_takes_no_time() -> None:
    assert best_buckets((4, 5, 6), (0, 0, 0), 7) == (Bucket(3, 0, 22),)


def test_a_base_may_hide_too() -> None:
    assert best_buckets((0, 8), (20, 2), 10) == (Bucket(2, 20, 18),)
