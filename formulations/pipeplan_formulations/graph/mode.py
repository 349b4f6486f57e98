"""Modes of a graph stage: kind and number of devices, and the resulting costs of the groups in the stage.

A *mode* of one stage fixes the devices it takes and the number of replicas that share its micro-batches. It also fixes
the time of each group of nodes under each of its *variants* (recomputed or not), the cost of tensors that cross its
borders, and the memory limit. Plain accelerators are one mode; a slow processor whose transfers cost nothing is a
second one; m replicas of a stage are another mode for each m.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.mode import Array, Mode
from pipeplan_formulations.common.sentinels import UNLIMITED

__all__ = ["Array", "Border", "GraphMode", "Line"]

Number = TypeVar("Number", int, Array)


@dataclass(frozen=True)
class Line:
    """One resource of a stage, such as a device or one direction of a link; the load is the maximum over its lines.

    Attributes
    ----------
    time : array, shape (V, n)
        Time that each group adds, under each variant.
    leave, enter : array, shape (E,)
        Amount that each star adds if its tensor leaves the stage, or enters it.
    base : int
        Added if the stage holds a group that pays it.
    divisor : int
        Divisor of the sums that leave and enter, each rounded up: it turns bytes into time.
    times : int
        Factor of the rounded sums that leave and enter.
    share : int
        Divisor of the total, as the number of replicas; a load is rounded up to the next integer.
    pays : array of bool, shape (n,)
        Groups that pay the base, once per stage; by default all do.
    """

    time: Array
    leave: Array
    enter: Array
    base: int = 0
    divisor: int = 1
    times: int = 1
    share: int = 1
    pays: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __post_init__(self) -> None:
        if self.pays.size == 0:
            object.__setattr__(self, "pays", np.ones(self.time.shape[-1], np.bool_))

    def load(self, time: Number, leave: Number, enter: Number, paying: Number) -> Number:
        """Load from a stage's sums over groups and stars and its number of paying groups; numbers or arrays."""
        crossing = -(-leave // self.divisor) + -(-enter // self.divisor)
        return -(-(self.base * (paying > 0) + time + self.times * crossing) // self.share)


@dataclass(frozen=True)
class Border:
    """One direction of the link between two neighbouring stages; its load is rounded down.

    Attributes
    ----------
    leave : array, shape (E,)
        Amount that each star adds if it crosses the border.
    divisor, times, share : int
        As in `Line`.
    """

    leave: Array
    divisor: int = 1
    times: int = 1
    share: int = 1

    def load(self, crossing: Number) -> Number:
        """Border load from a sum over stars."""
        return self.times * -(-crossing // self.divisor) // self.share


@dataclass(frozen=True)
class GraphMode(Mode):
    """One way to run a stage of groups. An array that is left out holds zeros (`possible`: all True).

    Attributes
    ----------
    lines : tuple of Line
    fixed, held, peak : array, shape (V, n)
        Bytes of each group that are static; per micro-batch in flight; and live only while the group computes.
    received : array, shape (E,)
        Bytes per micro-batch in flight of each tensor that enters.
    possible : array of bool, shape (V, n)
        True where a group can run in this mode under a variant.
    """

    lines: tuple[Line, ...] = ()
    fixed: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    held: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    peak: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    received: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    possible: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))

    def __post_init__(self) -> None:
        if not self.lines:
            raise ValueError(f"mode {self.name!r} has no line; give at least one")
        shape = self.lines[0].time.shape
        for name in ("fixed", "held", "peak"):
            if getattr(self, name).size == 0:
                object.__setattr__(self, name, np.zeros(shape, np.int64))
        if self.received.size == 0:
            object.__setattr__(self, "received", np.zeros(self.lines[0].leave.shape, np.int64))
        if self.possible.size == 0:
            object.__setattr__(self, "possible", np.ones(shape, np.bool_))
        tables = [self.fixed, self.held, self.peak, *(line.time for line in self.lines)]
        if any(table.shape != shape for table in [self.possible, *tables]):
            raise ValueError(f"mode {self.name!r}: tables of groups differ in shape; all have (variants, groups)")
        stars = [self.received, *(row for line in self.lines for row in (line.leave, line.enter))]
        if len({row.shape for row in stars}) > 1:
            raise ValueError(f"mode {self.name!r}: rows of stars differ in length")
        if any(int(values.min(initial=0)) < 0 for values in [*tables, *stars, self.in_flight]):
            raise ValueError(f"mode {self.name!r}: times, sizes and counts must be 0 or more")
        super().__post_init__()
        if any(min(line.share, line.divisor, line.times) < 1 or line.base < 0 for line in self.lines):
            raise ValueError(
                f"mode {self.name!r}: a line's share, divisor and times must be at least 1, its base at least 0"
            )

    @cached_property
    def depends_on_flow(self) -> bool:
        """True if the memory constraint depends on the stages behind."""
        holds = bool(self.held.any() or self.received.any())
        return self.limit < UNLIMITED and holds and len(self.steps) > 1
