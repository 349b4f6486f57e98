"""Scaling of nanoseconds to solver integers: one unit for all tables of a problem, rounded down.

::

    nanoseconds   0 ────── 1000 ────── 2000 ──▶          unit 1000 ns
    solver        0 ······ 1 ········· 2 ·····           1999 ns ↦ 1,   bound 1 ↦ 1000 ns

Every objective is a maximum of sums of table entries with non-negative coefficients. Rounding the entries down rounds
every objective down: a lower bound on the scaled problem, times the unit, is a lower bound on the problem. Solutions
are indices, and are evaluated on the unscaled tables.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BITS = 50
"""Scaled objectives stay below 2^BITS: a double represents them exactly, and int64 the sums of about 2^13 of them."""

Value = TypeVar("Value", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale in which one solver integer is ``unit`` nanoseconds. With unit 1 it is exact."""

    unit: int = 1

    @property
    def exact(self) -> bool:
        """True if scaled values equal the values."""
        return self.unit == 1

    def down(self, value: Value) -> Value:
        """Nanoseconds as solver integers, rounded down."""
        return value // self.unit

    def up(self, bound: int) -> int:
        """A lower bound in solver integers as a lower bound in nanoseconds."""
        return bound * self.unit


def scale_for(largest: int, bits: int = BITS) -> Scale:
    """The finest scale that keeps an objective of at most ``largest`` nanoseconds below 2^bits.

    Raises
    ------
    ValueError
        If ``largest`` is negative, or ``bits`` is so large that sums may exceed int64.
    """
    if largest < 0:
        raise ValueError(f"the largest objective is {largest}; times are not negative")
    if not 1 <= bits <= 60:
        raise ValueError(f"{bits} bits do not leave a 64-bit solver room to add; choose 1 to 60")
    return Scale(-(-(largest + 1) // 2**bits))
