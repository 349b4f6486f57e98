"""A pattern of one micro-batch without a solver: each operation at the first place of the frame that is left for it.

For many stages this is quick, and with memory for every stage's round trip it is often all that is needed.

::

    frame of a device   │F F F · · I I I · W W│      I may not begin at once if W no longer fits anywhere then
"""

from itertools import pairwise

from pipeplan_formulations.schedule.cyclic.pattern import Pattern
from pipeplan_formulations.schedule.instance import Op, PipelineSchedule


def compact(problem: PipelineSchedule, period: int) -> Pattern | None:
    """Forwards along the chain, backwards back again, then every W; None if something does not fit."""
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
    """Places of one device that are taken, modulo the period."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.taken: list[tuple[int, int]] = []

    def first(self, ready: int, duration: int, rest: list[int]) -> int | None:
        """The first start ≥ ready that overlaps nothing and leaves gaps for the rest, longest first."""
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
    """Whether the lengths fit into the gaps if the longest goes first, each into the first gap that has room."""
    gaps = list(gaps)
    for length in sorted(lengths, reverse=True):
        for i, gap in enumerate(gaps):
            if gap >= length:
                gaps[i] -= length
                break
        else:
            return False
    return True
