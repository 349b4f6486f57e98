"""The largest entry of any stretch of an array, from maxima over all runs of 2^k entries."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]


class RangeMaximum:
    """Largest entry of ``values[a:b]`` for arrays a < b of any shape."""

    def __init__(self, values: Array) -> None:
        self._levels = [values]
        while 2 ** len(self._levels) <= len(values):
            half, level = 2 ** (len(self._levels) - 1), self._levels[-1]
            self._levels.append(np.maximum(level[:-half], level[half:]))

    def __call__(self, a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        power = np.frexp(b - a)[1] - 1
        result = np.empty(a.shape, np.int64)
        for k in np.unique(power):
            here = power == k
            level = self._levels[k]
            result[here] = np.maximum(level[a[here]], level[b[here] - 2**k])
        return result
