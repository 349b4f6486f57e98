"""Layers that share weights.

::

    layers    0 │ 1 2 │ 3 4 5        a tie of layers 0 and 4: what they share counts as layer 0's. Stage 2 holds a copy,
              h         c            and both stages, home (h) and copy (c), add up the gradients of the two
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tie:
    """What it costs to have layers that share weights in different stages; in one stage they cost nothing more.

    What is shared is part of the first layer's numbers. A stage that holds others of the layers, but not the first, has
    a copy.

    Attributes
    ----------
    layers : tuple of int
        At least two, ascending.
    resident, update, reduce : tuple of int
        One entry a stage: bytes of a copy there, nanoseconds of its optimiser step, and nanoseconds to add its
        gradients to the others'.
    home : tuple of int
        One entry a stage: nanoseconds of that sum on the stage of the first layer, if another stage has a copy, beyond
        what the layer has in `ChainPartition.reduce`.

    Raises
    ------
    ValueError
        If the layers are not in order, a number is negative, or the rows differ in length.
    """

    layers: tuple[int, ...]
    resident: tuple[int, ...]
    update: tuple[int, ...]
    reduce: tuple[int, ...]
    home: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.layers) < 2 or self.layers[0] < 0 or any(a >= b for a, b in pairwise(self.layers)):
            raise ValueError(f"a tie joins two layers or more, in ascending order, not {self.layers}")
        rows = (self.resident, self.update, self.reduce, self.home)
        if len({len(row) for row in rows}) > 1:
            raise ValueError(f"a tie has one number a stage; its rows have {', '.join(str(len(row)) for row in rows)}")
        if any(number < 0 for row in rows for number in row):
            raise ValueError(f"a tie costs bytes and time; some of these are negative: {rows}")

    def copied(self, a: Array, b: Array) -> Flags:
        """Whether a stage on the layers a … b − 1 has a copy."""
        return copied(self.layers, a, b)

    def left(self, a: Array, b: Array) -> Flags:
        """Whether a stage on the layers a … b − 1 has the first of the layers, and another stage a copy."""
        return left(self.layers, a, b)


def copied(layers: tuple[int, ...], a: Array | int, b: Array | int) -> Flags:
    """Whether the layers a … b − 1 hold some of ``layers``, which ascend, but not the first of them."""
    some = [np.less_equal(a, layer) & np.greater(b, layer) for layer in layers]
    result: Flags = np.logical_or.reduce(some[1:]) & np.logical_not(some[0])
    return result


def left(layers: tuple[int, ...], a: Array | int, b: Array | int) -> Flags:
    """Whether the layers a … b − 1 hold the first of ``layers``, which ascend, but not all of them."""
    first, last = layers[0], layers[-1]
    result: Flags = np.less_equal(a, first) & np.greater(b, first) & np.less_equal(b, last)
    return result
