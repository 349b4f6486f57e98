"""The best buckets against every way to cut a stage's gradients into buckets, event by event."""

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from pipeplan.core.pipeline import Bucket, exposed
from pipeplan.costs.buckets import best_buckets

TIMES = st.one_of(st.integers(0, 3), st.integers(0, 40))
LAYERS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8)


def ends(layers: list[tuple[int, int]], base: int, cuts: tuple[int, ...]) -> int:
    """Time from the end of the backward to that of the last sum; buckets begin with layer 0 and those in ``cuts``."""
    clock, ready = 0, {}
    for number in range(len(layers) - 1, -1, -1):
        clock += layers[number][1]
        ready[number] = clock
    free = 0
    for a, b in sorted(zip((0, *cuts), (*cuts, len(layers)), strict=True), reverse=True):
        own = [number for number in range(a, b) if layers[number][0]]
        if own:
            free = max(free, ready[own[0]]) + base + sum(layers[number][0] for number in own)
    return max(free - clock, 0)


@given(LAYERS, st.integers(0, 20))
def test_no_other_cut_ends_earlier(layers: list[tuple[int, int]], base: int) -> None:
    inner = range(1, len(layers))
    every = chain.from_iterable(combinations(inner, count) for count in range(len(layers)))
    best = min(ends(layers, base, cuts) for cuts in every)
    times, hides = zip(*layers, strict=True)
    found = best_buckets(times, hides, base)
    assert exposed(found) == best
    if found:
        assert sum(bucket.layers for bucket in found) == len(layers)
        cuts = []
        for bucket in found[:-1]:
            cuts.insert(0, (cuts[0] if cuts else len(layers)) - bucket.layers)
        assert ends(layers, base, tuple(cuts)) == best
    else:
        assert not any(times)


def test_a_stage_without_gradients_has_no_buckets() -> None:
    assert best_buckets((0, 0), (5, 5), 3) == ()
    assert exposed(()) == 0


def test_nothing_hides_where_the_backward_takes_no_time() -> None:
    assert best_buckets((4, 5, 6), (0, 0, 0), 7) == (Bucket(3, 0, 22),)


def test_a_base_may_hide_too() -> None:
    assert best_buckets((0, 8), (20, 2), 10) == (Bucket(2, 20, 18),)
