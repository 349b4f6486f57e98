"""Patterns: endless schedules that repeat the same starts every period.

A pattern of one micro-batch needs no solver (`compact`): each operation takes the first free place of the frame. For
many stages this is fast, and with memory for every stage's round trip it is often sufficient.

::

    frame of a device   │F F F · · I I I · W W│      I is delayed if otherwise no gap is left for W
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule


@dataclass(frozen=True)
class Pattern:
    """Starts of the operations of micro-batches 0 to unit − 1; those of micro-batch j + n unit come n periods later.

    ::

        device 0   F0 I· W· F1 I· W·│F2 I· W· F3 I· W·│        unit 2
        device 1   ·· F0 I0 W· F1 I1│W0 F2 I2 W1 F3 I3│W2      ├─ period ─┤

    Attributes
    ----------
    unit : int
        Micro-batches of one period.
    period : int
    starts : mapping of Op to int
        One for every operation with ``micro_batch < unit``.
    """

    unit: int
    period: int
    starts: Mapping[Op, int]

    def faults(self, problem: PipelineSchedule) -> list[str]:
        """Violated rules of the pattern as texts; an empty list if it is a schedule."""
        # Missing or extra operations; precedence; overlap on a device, round the frame; memory.
        wanted = {Op(k, s, j) for s in range(problem.stages) for k in problem.kinds(s) for j in range(self.unit)}
        if set(self.starts) != wanted:
            return [f"the pattern runs {sorted(set(self.starts) ^ wanted)[:5]} too much or too little"]
        found = [f"{op} starts before {first} is over" for op, first in self._early(problem)]
        for d, hosted in enumerate(problem.hosted):
            ops = sorted((start % self.period, op) for op, start in self.starts.items() if op.stage in hosted)
            for i, (begin, op) in enumerate(ops):
                until = ops[i + 1][0] if i + 1 < len(ops) else ops[0][0] + self.period
                if begin + problem.duration(op) > until:
                    found.append(f"{op} runs into the next operation of device {d}")
        return found + [
            f"device {d} holds {peak} bytes of {room}"
            for d, (peak, room) in enumerate(zip(self.peaks(problem), problem.room, strict=True))
            if peak > room
        ]

    def _early(self, problem: PipelineSchedule) -> list[tuple[Op, Op]]:
        """Pairs (operation, input) that violate the inputs, or the order within a kind."""
        found = []
        for op, start in self.starts.items():
            kind, s, j = op
            waits = [(Op(*row, j), lag) for row, lag in problem.inputs[kind, s]]
            ends = [(first, self.starts[first] + problem.duration(first) + lag) for first, lag in waits]
            before = Op(kind, s, j - 1 if j else self.unit - 1)
            ends.append((before, self.starts[before] + problem.duration(op) - (0 if j else self.period)))
            found += [(op, first) for first, end in ends if end > start]
        return found

    def peaks(self, problem: PipelineSchedule) -> tuple[int, ...]:
        """Peak memory of each device's stages in bytes, `base` not included."""
        most = [0] * problem.devices
        for op, at in self.starts.items():
            if op.kind == "F":
                d = problem.device[op.stage]
                most[d] = max(most[d], self._held(problem, d, at))
        return tuple(most)

    def _held(self, problem: PipelineSchedule, device: int, at: int) -> int:
        """Bytes held after the forwards that start at time ``at``: forwards begun less operations ended by then."""
        held = 0
        for s in problem.hosted[device]:
            for kind in problem.kinds(s):
                for j in range(self.unit):
                    op = Op(kind, s, j)
                    counted = self.starts[op] + (0 if kind == "F" else problem.duration(op))
                    held += problem.delta[kind][s] * ((at - counted) // self.period + 1)
        return held

    def latency(self, problem: PipelineSchedule) -> int:
        """Time from the first start to the last end of the micro-batches of one period."""
        return max(start + problem.duration(op) for op, start in self.starts.items()) - min(self.starts.values())

    def orders(self, problem: PipelineSchedule) -> Orders:
        """Orders of the problem's M micro-batches, cut out of the endless schedule.

        Operations wait for each other no more than in the pattern, and devices hold no more than in it.
        """
        lists = []
        for d in range(problem.devices):
            begun = []
            for op in problem.operations(d):
                period, j = divmod(op.micro_batch, self.unit)
                begun.append((self.starts[op._replace(micro_batch=j)] + period * self.period, op))
            lists.append(tuple(op for _, op in sorted(begun)))
        return tuple(lists)


def compact(problem: PipelineSchedule, period: int) -> Pattern | None:
    """Greedy pattern of one micro-batch: forwards along the chain, backwards, then every W; None if it does not fit."""
    # left: durations on each device that are not placed yet, for which gaps must remain.
    frames = [_Frame(period) for _ in problem.base]
    left = [sorted(problem.time[k][s] for s in hosted for k in problem.kinds(s)) for hosted in problem.hosted]
    starts: dict[Op, int] = {}
    time, stages = 0, range(problem.stages)
    forward = [(Op("F", s, 0), problem.lag[s - 1] if s else 0) for s in stages]
    back = [(Op("I", s, 0), problem.lag_back[s] if s < stages[-1] else 0) for s in reversed(stages)]
    for op, lag in (*forward, *back, *((Op("W", s, 0), 0) for s in stages if problem.split[s])):
        d, duration = problem.device[op.stage], problem.duration(op)
        ready = time + lag
        if op.kind == "W":
            ready = starts[Op("I", op.stage, 0)] + problem.backward[op.stage]
        left[d].remove(duration)
        begin = frames[d].first(ready, duration, left[d])
        if begin is None:
            return None
        frames[d].place(begin, duration)
        starts[op] = begin
        time = begin + duration
    pattern = Pattern(1, period, starts)
    return None if pattern.faults(problem) else pattern


class _Frame:
    """Occupied intervals of one device, modulo the period."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.taken: list[tuple[int, int]] = []

    def first(self, ready: int, duration: int, rest: list[int]) -> int | None:
        """First start ≥ ready that overlaps nothing and leaves gaps for the rest, longest first; None if none."""
        tries = [0] + [begin + length - ready for begin, length in self.taken]
        tries += [begin - duration - ready for begin, _ in self.taken]
        for wait in sorted({wait % self.period for wait in tries}):
            gaps = self._gaps([*self.taken, ((ready + wait) % self.period, duration)])
            if gaps is not None and _fit(gaps, rest):
                return ready + wait
        return None

    def place(self, begin: int, duration: int) -> None:
        self.taken.append((begin % self.period, duration))

    def _gaps(self, taken: list[tuple[int, int]]) -> list[int] | None:
        """Lengths between the intervals around the frame; None if two overlap."""
        taken = sorted(taken)
        gaps = [then - begin - length for (begin, length), (then, _) in pairwise(taken)]
        gaps.append(taken[0][0] + self.period - taken[-1][0] - taken[-1][1])
        return None if min(gaps) < 0 else gaps


def _fit(gaps: list[int], lengths: list[int]) -> bool:
    """True if first-fit decreasing puts all lengths into the gaps."""
    gaps = list(gaps)
    for length in sorted(lengths, reverse=True):
        for i, gap in enumerate(gaps):
            if gap >= length:
                gaps[i] -= length
                break
        else:
            return False
    return True
