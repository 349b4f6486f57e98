"""Modes: ways to run a stage, by the units that it takes from the pools of devices and its in-flight counts.

Devices of a kind form a pool. A stage takes units out of the pools, and its replicas take micro-batches in turn. The
number of micro-batches that a replica holds depends on the *flow* behind the stage, the replicas of all later stages::

    stage           0    1    2
    flow            1    2    1        the mode of stage 1 takes 2 units and adds 2 to the flow
    flow behind     3    1    0
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED

Array = NDArray[np.int64]


def _one() -> Array:
    return np.ones(1, np.int64)


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Mode:
    """One way to run a stage, independent of its layers.

    Attributes
    ----------
    name : str
    takes : tuple of int
        Units taken from each pool.
    flow : int
        Replicas of the stage: its part of the flow behind earlier stages.
    limit : int
        Bytes of each device.
    in_flight : array, shape (Q,)
        Micro-batches that a replica holds, by the flow behind the stage, non-decreasing; the last entry also applies to
        larger flows. If counts are a choice, the fewest.
    most_in_flight : array, shape (Q,)
        If counts are a choice, the most; by default the same.

    Raises
    ------
    ValueError
        If the mode takes nothing, a number is negative, or the counts decrease.
    """

    name: str
    takes: tuple[int, ...]
    flow: int = field(default=1, kw_only=True)
    limit: int = field(default=UNLIMITED, kw_only=True)
    in_flight: Array = field(default_factory=_one, kw_only=True)
    most_in_flight: Array = field(default_factory=_none, kw_only=True)

    def __post_init__(self) -> None:
        if self.limit < 0 or self.flow < 0:
            raise ValueError(f"mode {self.name!r}: neither the limit {self.limit} nor the flow {self.flow} is below 0")
        if not self.most_in_flight.size:
            object.__setattr__(self, "most_in_flight", self.in_flight)
        for counts in (self.in_flight, self.most_in_flight):
            if not len(counts) or (np.diff(counts) < 0).any():
                raise ValueError(f"mode {self.name!r}: in-flight counts must not decrease as the flow behind increases")
        if min(self.takes, default=0) < 0 or not any(self.takes):
            raise ValueError(f"mode {self.name!r} takes {self.takes}; a stage takes at least one device")

    def flying(self, behind: int) -> int:
        """Fewest micro-batches that a replica holds with the flow ``behind`` behind the stage."""
        return int(self.in_flight.take(behind, mode="clip"))

    def most_flying(self, behind: int) -> int:
        """Most micro-batches that a replica may hold with the flow ``behind`` behind the stage."""
        return int(self.most_in_flight.take(behind, mode="clip"))

    @cached_property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """``(behind, in flight)`` at every flow behind at which the in-flight count increases."""
        change = [0, *(int(i) + 1 for i in np.flatnonzero(np.diff(self.in_flight)))]
        return tuple((behind, int(self.in_flight[behind])) for behind in change)
