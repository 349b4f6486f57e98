"""Vectorised simulation of all samples of a block: one order of actions for all, one row of times per action.

::

    sample      0    1    2    3  …
    0F0 ends   10   11    9   10         start = max(lane free, dependencies), row by row
    0F1 ends   20   21   19   22         end   = start + duration
    …
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pipeplan.core.cluster import Overlap
from pipeplan.simulate.perturbed.sequence import Groups
from pipeplan.simulate.perturbed.times import Ints, Times
from pipeplan.simulate.program import Program
from pipeplan.simulate.structure import NOTHING

OFTEN = 1000
"""Number of groups of actions between two calls of ``check``."""


def last_ends(program: Program, order: Groups, times: Times, check: Callable[[], None] = lambda: None) -> Ints:
    """Return the step time of every sample, shape (k,), of a program without shared resources."""
    return _Lockstep(program, times).run(order, check)


@dataclass
class _Lockstep:
    """State of the simulation: times of signals, and times at which resources become free."""

    program: Program
    times: Times
    signals: dict[int, Ints] = field(default_factory=dict)
    resource_free: dict[int, Ints] = field(default_factory=dict)  # by channel, as no two channels share resources

    def run(self, order: Groups, check: Callable[[], None]) -> Ints:
        program = self.program
        zero: Ints = np.zeros(self.times.durations.shape[1], np.int64)
        lane_of = {i: lane for lane, own in enumerate(program.lanes) for i in own}
        free = [zero + time for time in program.begins for _ in range(2)]
        blocks = program.overlap is Overlap.NONE
        for place, group in enumerate(order):
            if place % OFTEN == 0:
                check()
            # Start of the group: all its lanes are free, and all signals have been given.
            begin = free[lane_of[group[0]]]
            for i in group:
                for ready in (free[lane_of[i]], *(self.signals[signal] for signal in program.needs[i])):
                    if ready is not begin:
                        begin = np.maximum(begin, ready)
            for i in group:
                end = begin + self.times.durations[i]
                self.signals[i] = end
                gone = self._send(i, begin, end) if program.channel_of[i] != NOTHING else end
                free[lane_of[i]] = gone if blocks else end
        last = [self.signals[own[-1]] for own in program.lanes if own]
        result: Ints = np.maximum.reduce(last) if last else zero
        return result

    def _send(self, i: int, begin: Ints, end: Ints) -> Ints:
        """Send the tensor of action i; return the times at which its last byte has left."""
        number, transfer = self.program.channel_of[i], self.times.transfer_of[i]
        streams = self.program.overlap is Overlap.STREAM
        left = begin if streams else end
        if number in self.resource_free:
            left = np.maximum(left, self.resource_free[number])
        gone: Ints = left + self.times.occupancies[transfer]
        if self.program.channels[number].resources:
            self.resource_free[number] = gone
        if streams:
            gone = np.maximum(gone, end)
        self.signals[len(self.program.actions) + i] = gone + self.times.latencies[transfer]
        return gone
