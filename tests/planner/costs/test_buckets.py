"""The best buckets against every way to cut a stage's gradients into buckets, event by event."""

from hypothesis import given
from hypothesis import strategies as st

from helpers.buckets import least_left, left
from pipeplan.core.pipeline import Bucket, exposed
from pipeplan.costs.buckets import best_buckets

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


def test_a_stage_without_gradients_has_no_buckets() -> None:
    assert best_buckets((0, 0), (5, 5), 3) == ()
    assert exposed(()) == 0


def test_nothing_hides_where_the_backward_takes_no_time() -> None:
    assert best_buckets((4, 5, 6), (0, 0, 0), 7) == (Bucket(3, 0, 22),)


def test_a_base_may_hide_too() -> None:
    assert best_buckets((0, 8), (20, 2), 10) == (Bucket(2, 20, 18),)
