"""Leaps over many periods of the recurrence, each with a proof that the ticks between would end there.

While the same stages are at work, a number of ticks (a multiple of the period) is one map f of states, made of maxima
and of sums with constants. Let x be the state now and x − g the one that many ticks ago, so x = f(x − g). Every entry
of f(x + t g) is a convex function of t, because x + t g is linear in t. For t = −1 it is x. If for t = T it is
x + (T + 1) g and has the slope g from the left, it is x + (t + 1) g for every t from −1 to T: not less, as a convex
function is nowhere below its tangents, and not more, as it is nowhere above its chords. So T + 1 repetitions of f lead
to x + (T + 1) g.

::

    f(x + t g)     ╱ ▪ too late at T: the tangent leads to a lesser T
               ╱  ▪
           ╱ ▪ ┄┄┄┄┄┄     x + (t + 1) g
       ▪ ┄
      t = −1       T

Values and slopes come from the same ticks. Every time v with the slope r is the number v K − r with a large K. Sums and
maxima of such numbers are those of the values, and of equal values a maximum takes the one with the lesser slope, which
is the slope from the left. Where the value at T is too late, its tangent meets x + (t + 1) g at the largest t that may
still hold.

Nothing is assumed about the pipeline. A stage that is faster than the next one runs ahead for ever, so no state need
return; only rates have to.
"""

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from operator import eq, sub
from typing import NamedTuple

from pipeplan.simulate.recurrence.ticks import Log, Recurrence, Walk

SLOPE = 1 << 64
"""K: above every slope."""
LONGEST_WAIT = 64
"""Most periods after a failed attempt until the next one."""
COST = 2
"""Time of a tick of an attempt, in ticks."""
LOSS, LEAST_LOSS = 0.25, 50
"""Ticks that attempts may cost beyond those leapt over: a share of the ticks that were run, and so many more."""
PROBES = 16
"""Replicas whose times are looked at first."""
KEPT = 1_000_000
"""Most times in the states that are kept to find a repetition."""


class Transfers(NamedTuple):
    """Some transfers of one channel: ``log`` is that of their last repetition, ``rates`` its growth in each."""

    log: Log
    rates: Sequence[int]
    repetitions: int


Record = dict[int, list[Transfers]]
"""All transfers of channels that share resources, by number of the link."""


def run(
    recurrence: Recurrence, begin: Sequence[int] = (), *, log: bool = False, leaps: bool = True
) -> tuple[list[int], Record]:
    """Run all ticks; return when each replica is free, and the transfers over shared resources if ``log`` is set.

    ``begin`` has a time for each stage from which on its replicas are free; 0 by default.
    """
    return _Leaps(recurrence, begin, log).run(leaps)


class _Leaps:
    def __init__(self, recurrence: Recurrence, begin: Sequence[int], log: bool) -> None:
        self._recurrence = recurrence
        self._walk, self._log = Walk(recurrence, 1, log), log
        self._walk.free[:] = recurrence.of_replicas(begin)
        self._record: Record = {link: [] for link in self._walk.logs}
        self._walked = self._lost = 0  # ticks

    @cached_property
    def _trial(self) -> Walk:
        return Walk(self._recurrence, SLOPE, self._log)

    def run(self, leaps: bool) -> tuple[list[int], Record]:
        recurrence = self._recurrence
        many, offsets = recurrence.micro_batches, recurrence.offsets
        changes = sorted({0, many, *offsets, *(e + many for e in offsets)})
        for begin, end in pairwise(changes):
            _, ended, begun = recurrence.active(begin)
            steady = not ended and begun in (0, len(offsets))  # otherwise more and more gradients wait, or fewer
            if steady and leaps:
                begin = self._leap(begin, end)
            self._walk.run(begin, end)
        self._close_logs()
        return self._walk.free, self._record

    def _leap(self, tick: int, end: int) -> int:
        """Run some ticks of a phase and leap over others; return the first tick that is left."""
        walk, period = self._walk, self._recurrence.period
        step = -(-len(walk.free) // PROBES)
        leapt = 1
        while leapt and end - tick > 3 * period:
            states = deque([walk.flat()], maxlen=max(KEPT // len(walk.free), 4))
            last_seen: dict[tuple[int, ...], int] = {}
            number = wait = leapt = 0
            while not leapt and end - tick > 2 * period:
                walk.run(tick, tick + period)
                tick, number = tick + period, number + 1
                self._walked += period
                states.append(walk.flat())
                # If some replicas' times grow as they did q periods ago, q may be a period of the growth.
                growth = tuple(map(sub, walk.free[::step], states[-2][: len(walk.free) : step]))
                q = number - last_seen.get(growth, -KEPT)
                last_seen[growth] = number
                if number < wait or q + 1 >= len(states) or end - tick < 2 * q * period:
                    continue
                if self._lost + COST * q * period > LOSS * self._walked + LEAST_LOSS:
                    continue
                if all(map(eq, map(sub, states[-1], states[-2]), map(sub, states[-1 - q], states[-2 - q]))):
                    leapt = self._periods(tick, states[-1], states[-1 - q], q * period, (end - tick) // (q * period))
                    wait = number + min(2 * q, LONGEST_WAIT)
                    tick += leapt * q * period
                    self._lost -= leapt * q * period
        return tick

    def _periods(self, tick: int, state: list[int], before: list[int], ticks: int, most: int) -> int:
        """Leap over up to ``most`` times ``ticks`` ticks; return how many times."""
        walk, trial = self._walk, self._trial
        rates = list(map(sub, state, before))
        waiting = [len(queue) for queue in walk.waiting]
        last = most - 1 if max(rates) < SLOPE else 0  # T
        while last > 0:
            # Run from x + T g, with slopes g.
            trial.put([(v + last * r) * SLOPE - r for v, r in zip(state, rates, strict=True)], waiting)
            for log in trial.logs.values():
                log.clear()
            trial.run(tick, tick + ticks)
            self._lost += COST * ticks
            reached = trial.flat()
            wanted = [(v + (last + 1) * r) * SLOPE - r for v, r in zip(state, rates, strict=True)]
            if reached != wanted:
                last = _tangent(reached, wanted, last)
            elif self._log_leap(last + 1):
                walk.put([v + (last + 1) * r for v, r in zip(state, rates, strict=True)], waiting)
                return last + 1
            else:
                last //= 2
        return 0

    def _log_leap(self, count: int) -> bool:
        """Record the transfers of ``count`` repetitions; return False if their times are not proved to be linear.

        They are, as above, if the line through the last repetition's time, with its slope, meets the time before all.
        """
        found = {}
        for link, log in self._trial.logs.items():
            values = [-(-time // SLOPE) for time in log]
            slopes = [value * SLOPE - time for value, time in zip(values, log, strict=True)]
            known = self._walk.logs[link][-len(log) :] if log else []
            if [value - count * slope for value, slope in zip(values, slopes, strict=True)] != known:
                return False
            found[link] = Transfers(values, slopes, count)
        self._close_logs()
        for link, transfers in found.items():
            self._record[link].append(transfers)
        return True

    def _close_logs(self) -> None:
        """Move the transfers that were run tick by tick to the record."""
        for link, log in self._walk.logs.items():
            self._record[link].append(Transfers(log.copy(), [0] * len(log), 1))
            log.clear()


def _tangent(reached: list[int], wanted: list[int], last: int) -> int:
    """Return the largest t below ``last`` that the tangents of the entries reached too late leave; 0 if none can."""
    best = last
    for has, should in zip(reached, wanted, strict=True):
        value, line = -(-has // SLOPE), -(-should // SLOPE)
        steeper = (value - line) * SLOPE - (has - should)  # slope less rate
        if value < line or (value == line and steeper):
            return 0
        if value > line:
            best = min(best, last + (line - value) // steeper)
    return max(best, 0)
