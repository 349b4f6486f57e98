"""Coordinates of a choice of splits in a problem of `pipeplan_formulations.sharding`: what it costs."""

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.sharding import Sharding
from pipeplan_formulations.sharding.instance import LARGEST

COORDINATES = ("forward", "backward", "input_gradient", "weight_gradient", "update", "summed", "parameters", "saved")
"""Nanoseconds of the four passes, of the update and of sums behind it, bytes that stay, bytes per micro-batch."""


def combined(*rows: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the matrix of a projection to sums of these coordinates."""
    return np.array([[int(name in row) for name in COORDINATES] for row in rows], np.int64)


WORTH = 2**20
"""Most saved bytes that weigh as much as a nanosecond."""
FASTEST = combined(
    *(("forward", "backward"), ("saved",), ("forward",), ("input_gradient",), ("weight_gradient",), ("summed",))
)
"""What the fastest strategies have least of: time of a micro-batch; of equal choices, saved bytes, then passes."""


def in_order(problem: Sharding, rows: NDArray[np.int64], worth: int = LARGEST) -> NDArray[np.int64]:
    """Return one row of weights by which choices compare as by these rows in order, as far as 61 bits go.

    ``worth``: at most so much of the second row weighs as much as one of the first.
    """
    one, *others = rows.astype(object)
    for number, (other, bound) in enumerate(zip(others, problem.project(rows).largest[1:], strict=True)):
        both = (bound + 1 if number else min(bound + 1, worth)) * one + other
        if sum(both * problem.largest) >= LARGEST:
            break
        one = both
    return np.array([one], np.int64)
