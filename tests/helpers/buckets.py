"""Sums of gradients in buckets, while a stage's last backward runs: one after the other, as each bucket is ready.

::

    last backward   ━━━━3━━━━│━━2━━│━━━1━━━│━━0━━│        sizes (2, 1, 1): layers 3 and 2, then 1, then 0
    sums                           ▒▒3, 2▒▒▒▒▒▒▒▒▒▒▒1▒▒▒▒▒▒0▒▒│
                                                 ├─ exposed ──┤
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise, product

Layers = Sequence[tuple[int, int]]
"""For each layer of a stage, how long its sum takes, and for how long its last backward hides other sums."""


def every_cut(layers: int) -> Iterator[tuple[int, ...]]:
    """Sizes of buckets of so many layers, in every way."""
    for cuts in product([False, True], repeat=layers - 1):
        edges = [0, *(i for i, cut in enumerate(cuts, 1) if cut), layers]
        yield tuple(b - a for a, b in pairwise(edges))


def left(layers: Layers, sizes: Sequence[int], base: int) -> int:
    """What is left when the last backward has ended, if each bucket with gradients takes the base too."""
    free, behind = -sum(h for _, h in layers), len(layers)  # the last backward ends at 0
    for size in sizes:
        first, behind = behind, behind - size
        bucket = [i for i in range(behind, first) if layers[i][0]]
        if bucket:
            ready = -sum(h for _, h in layers[: bucket[0]])
            free = max(free, ready) + base + sum(layers[i][0] for i in bucket)
    return max(free, 0)


def least_left(layers: Layers, base: int) -> int:
    """What is left with the best buckets."""
    return min(left(layers, sizes, base) for sizes in every_cut(len(layers)))


def slowed(layers: Layers, sizes: Sequence[int], base: int, speed: Fraction) -> Fraction:
    """How much later than the last backward alone it and all sums end, if it runs at this speed beside sums.

    On the clock, bucket by bucket: at first it takes the base, in which nothing is slower.
    """
    slow: list[tuple[Fraction, Fraction]] = []  # when bytes move: from, until

    def at(work: Fraction) -> Fraction:
        """When so much of the last backward is done."""
        now = Fraction(0)
        for begin, end in slow:
            if work <= begin - now:
                break
            work -= begin - now
            if work <= speed * (end - begin):
                return begin + work / speed
            work, now = work - speed * (end - begin), end
        return now + work

    free, behind, whole = Fraction(0), len(layers), sum(h for _, h in layers)
    for size in sizes:
        first, behind = behind, behind - size
        bucket = [i for i in range(behind, first) if layers[i][0]]
        if bucket:
            begin = max(free, at(Fraction(whole - sum(h for _, h in layers[: bucket[0]])))) + base
            free = begin + sum(layers[i][0] for i in bucket)
            slow.append((begin, free))
    return max(free, at(Fraction(whole))) - whole
