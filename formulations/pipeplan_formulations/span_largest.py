"""The largest entry of any span of an array, many spans at once."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]


class SpanLargest:
    """Answers from the largest of 1, 2, 4 … entries: any span is two of those, which may overlap.

    ::

        values      3  1  4  1  5  9  2
        of four     4  5  9  9                span 1 … 6 = the larger of 1 … 5 (5) and 2 … 6 (9)

    Attributes
    ----------
    of_all : int
        0 if there is none.
    """

    def __init__(self, values: Array) -> None:
        rows = [np.asarray(values, np.int64)]
        while 2 ** len(rows) <= len(values):
            row, step = rows[-1], 2 ** (len(rows) - 1)
            rows.append(np.append(np.maximum(row[:-step], row[step:]), row[-step:]))
        self.of_all = int(rows[0].max(initial=0))
        self._table = np.stack(rows)
        self._level = np.array([0, *(length.bit_length() - 1 for length in range(1, len(values) + 1))])

    def of(self, starts: Array | int, ends: Array | int) -> Array:
        """The largest of entries start … end − 1, at least one each."""
        level = self._level[np.subtract(ends, starts)]
        found: Array = np.maximum(self._table[level, starts], self._table[level, ends - (1 << level)])
        return found
