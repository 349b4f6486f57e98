"""The critical path: from the last action back, each time to something that ended just when this could start."""

from collections.abc import Sequence
from itertools import pairwise

from pipeplan.core.cluster import Overlap
from pipeplan.core.timeline import Flight, Span
from pipeplan.simulate.numbers import NOTHING
from pipeplan.simulate.program import Program
from pipeplan.simulate.run import Trace
from pipeplan.simulate.seen import flights, spans


def critical_path(program: Program, trace: Trace) -> tuple[Span | Flight, ...]:
    """A longest chain of actions and transfers, first to last."""
    n = len(program.actions)
    if not n:
        return ()
    before = [NOTHING] * n  # the action ahead in the same lane
    for order in program.lanes:
        for a, b in pairwise(order):
            before[b] = a

    path: list[int] = []  # numbers of actions, and n + those of transfers' senders
    last = [order[-1] for order in program.lanes if order]  # so that a path ends with the update, even if that is free
    i = max(last, key=trace.signals.__getitem__)
    while i != NOTHING:
        path.append(i)
        cause = _cause(program, trace, i, before)
        if cause < n:
            i = cause
            continue
        path.append(cause)
        i = cause - n
        while not _bound_by_end(program, trace, i) and i in trace.behind:
            i = trace.behind[i]
            path.append(n + i)
    ran = iter(spans(program, trace, [i for i in path if i < n]))
    travelled = iter(flights(program, trace, [i - n for i in path if i >= n]))
    return tuple(reversed([next(ran) if i < n else next(travelled) for i in path]))


def _cause(program: Program, trace: Trace, i: int, before: Sequence[int]) -> int:
    """What released action i, or the last of those that began with it.

    An action's number, n + the number of a transfer's sender, or `NOTHING`.
    """
    meeting = program.meeting_of[i]
    together = [i] if meeting == NOTHING else program.collectives[meeting]
    causes = (_cause_of_one(program, trace, each, before[each]) for each in together)
    return next((cause for cause in causes if cause != NOTHING), NOTHING)


def _cause_of_one(program: Program, trace: Trace, i: int, before: int) -> int:
    start = trace.starts[i]
    if before != NOTHING:
        if program.overlap is Overlap.NONE and program.channel_of[before] != NOTHING:
            if trace.gone[before] == start:
                return len(program.actions) + before  # its lane was busy sending
        elif trace.signals[before] == start:
            return before
    return next((signal for signal in program.needs[i] if trace.signals[signal] == start), NOTHING)


def _bound_by_end(program: Program, trace: Trace, i: int) -> bool:
    """Whether a streamed tensor's last byte left with its action's end, whenever its first one did."""
    return program.overlap is Overlap.STREAM and trace.gone[i] == trace.signals[i]
