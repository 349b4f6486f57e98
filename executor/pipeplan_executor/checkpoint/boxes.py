"""Numbers of a tensor that follow one another, as boxes: what a checkpoint can store and find again.

::

    of 4 x 5 numbers, laid out flat, those from 3 to 15        . . . a a      a: 1 x 2 numbers from (0, 3) on
                                                               b b b b b      b: 2 x 5 numbers from (1, 0) on
                                                               b b b b b
                                                               . . . . .
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor


class Box(NamedTuple):
    """A part of a tensor: where it begins, and how long it is, axis by axis."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many it holds."""
        return prod(self.sizes)

    def of(self, tensor: Tensor) -> Tensor:
        """This part of a tensor, as a view."""
        return tensor[tuple(slice(first, first + size) for first, size in zip(self.offsets, self.sizes, strict=True))]


def boxes_of(shape: Sequence[int], first: int, end: int, corner: Sequence[int] = ()) -> tuple[Box, ...]:
    """The fewest boxes, in order, that hold the numbers from ``first`` to ``end`` of a tensor laid out flat.

    ``corner`` is where the tensor begins in a larger one, in whose coordinates the boxes are.
    """
    at = tuple(corner) or (0,) * len(shape)
    return tuple(
        Box(tuple(map(sum, zip(at, offsets, strict=True))), sizes)
        for offsets, sizes in _within(tuple(shape), first, end)
    )


def _within(shape: tuple[int, ...], first: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    if not shape:
        if first < end:
            yield (), ()
        return
    row = prod(shape[1:])
    while first < end:
        number, within = divmod(first, row)
        rows = (end - first) // row
        if not within and rows:
            yield (number, *(0 for _ in shape[1:])), (rows, *shape[1:])
            first += rows * row
        else:
            stop = min(end, (number + 1) * row)
            for offsets, sizes in _within(shape[1:], within, within + stop - first):
                yield (number, *offsets), (1, *sizes)
            first = stop
