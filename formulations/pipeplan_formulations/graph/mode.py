"""Modes of a stage of a graph: devices of some kind, how many of them, and what the contents of the stage then cost.

A *mode* answers for one stage: which devices it takes, how many replicas share its micro-batches, what each group of
nodes takes there under each of its *variants* (recomputed or not), what crosses its borders, and what must fit.
Plain accelerators are one mode; a slow processor that sends for nothing is a second one; m replicas are an m-th one.
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
    """One of the sums that a stage's load is the largest of, as a device, or one direction of a link.

    Attributes
    ----------
    time : array, shape (V, n)
        What each group adds, under each variant.
    leave, enter : array, shape (E,)
        What each star adds if its tensor leaves the stage, or enters it.
    base : int
        Added if the stage holds a group that pays it.
    wire : int
        What leaves is divided by it and rounded up, and so is what enters: bytes become time.
    times : int
        How often what leaves and what enters, so rounded, are added.
    share : int
        Replicas, or whatever divides the sum; a load is rounded up to the next integer.
    pays : array of bool, shape (n,)
        Groups that pay the base, together once; by default all do.
    """

    time: Array
    leave: Array
    enter: Array
    base: int = 0
    wire: int = 1
    times: int = 1
    share: int = 1
    pays: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __post_init__(self) -> None:
        if self.pays.size == 0:
            object.__setattr__(self, "pays", np.ones(self.time.shape[-1], np.bool_))

    def load(self, time: Number, leave: Number, enter: Number, paying: Number) -> Number:
        """(4) for sums over a stage's groups and stars, and its number of groups that pay; numbers or arrays."""
        crossing = -(-leave // self.wire) + -(-enter // self.wire)
        return -(-(self.base * (paying > 0) + time + self.times * crossing) // self.share)


@dataclass(frozen=True)
class Border:
    """What lies between two neighbouring stages: one direction of a link, whose load is rounded down.

    Attributes
    ----------
    leave : array, shape (E,)
        What each star adds that crosses.
    wire, times, share : int
        As in `Line`.
    """

    leave: Array
    wire: int = 1
    times: int = 1
    share: int = 1

    def load(self, crossing: Number) -> Number:
        """(8) for a sum over stars."""
        return self.times * -(-crossing // self.wire) // self.share


@dataclass(frozen=True)
class GraphMode(Mode):
    """One way to run a stage of groups. Arrays may be left out where nothing is to be said.

    Attributes
    ----------
    lines : tuple of Line
    fixed, held, peak : array, shape (V, n)
        Bytes of each group that stay; that each micro-batch in flight holds; that live while the group computes.
    received : array, shape (E,)
        Bytes that each micro-batch in flight holds of a tensor that enters.
    possible : array of bool, shape (V, n)
        Which groups can run here, under which variants.
    """

    lines: tuple[Line, ...] = ()
    fixed: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    held: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    peak: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    received: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    possible: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))

    def __post_init__(self) -> None:
        if not self.lines:
            raise ValueError(f"mode {self.name!r} has no line, so no load")
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
            raise ValueError(f"mode {self.name!r}: times, sizes and counts are never negative")
        super().__post_init__()
        if any(min(line.share, line.wire, line.times) < 1 or line.base < 0 for line in self.lines):
            raise ValueError(f"mode {self.name!r}: a line's share, wire and times are 1 at least, its base 0")

    @cached_property
    def depends_on_flow(self) -> bool:
        """Whether what fits depends on the stages behind."""
        holds = bool(self.held.any() or self.received.any())
        return self.limit < UNLIMITED and holds and len(self.steps) > 1
