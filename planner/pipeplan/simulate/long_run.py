"""The period of a schedule: the average time from step to step in a long run.

Each device begins its list again when it has come to its end, and has gathered its parameters. Nothing else connects
the steps::

    stage 0   F F F F B   B   B   B R U F F F F B ...       the next forward of stage 0 follows its own update,
    stage 1     F   F B   F B   F B     R R R U F ...       while stage 1 still sums its gradients

Let x say how much later than stage 0 each device begins. The actions of a step that are first on their devices, other
than those of stage 0, wait for a tensor of the same step, so no device needs to be free before ``earliest``; what lies
below counts as 0. Stage 0 ends its step last of all that exchange tensors, so a step never shares a link with the next
one, and the next x follows from x alone. Once an x returns, the steps between repeat for ever, and their average is the
period.

Where none returns within `MOST_STEPS` steps, the step itself takes the place of the period: a run may always wait for
the last device.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind

MOST_STEPS = 16
"""Most steps that are simulated."""

Advance = Callable[[Sequence[int]], Sequence[int]]
"""Run one step: when each device ends it, given when each may begin its list. Stage 0 begins at 0."""


def long_run(advance: Advance, first: Sequence[int], earliest: Sequence[int], gathers: Sequence[int]) -> int:
    """Return the nanoseconds from step to step in a long run, rounded up; never more than a step.

    Parameters
    ----------
    advance : callable
    first : sequence of int
        Devices of stage 0.
    earliest : sequence of int
        For each device, a time before which no action of it begins in a step.
    gathers : sequence of int
        For each device, the nanoseconds from the end of its list to the begin of the next one.
    """

    def begins(ends: Sequence[int], turn: int) -> tuple[int, ...]:
        """x, given when each device ends its list, and when stage 0 begins the next one."""
        found = (end + gather - turn for end, gather in zip(ends, gathers, strict=True))
        return tuple(time if time > least else 0 for time, least in zip(found, earliest, strict=True))

    begin = min(gathers[device] for device in first)
    late, begun = begins([0] * len(earliest), begin), 0
    seen: dict[tuple[int, ...], tuple[int, int]] = {}  # x, and the number of its step and when that begins
    step = 0
    for number in range(MOST_STEPS):
        seen[late] = number, begun
        ends = advance(late)
        step = step or begin + max(ends)
        turn = min(ends[device] + gathers[device] for device in first)
        begun += turn
        late = begins(ends, turn)
        if late in seen:
            before, then = seen[late]
            return min(step, -(-(begun - then) // (number + 1 - before)))
    return step


def earliest_starts(pipeline: Pipeline) -> list[int]:
    """Return for each stage a time before which none of its actions begins in a step."""
    hops = []
    for s, row in enumerate(pipeline.transfers):
        forward = pipeline.stages[s].least(Kind.FORWARD)
        if set(pipeline.placement[s]) & set(pipeline.placement[s + 1]):
            hops.append(forward)
        elif pipeline.overlap is Overlap.STREAM:
            hops.append(min(max(forward, way.occupancy) + way.latency for way in row))
        else:
            hops.append(min(forward + way.occupancy + way.latency for way in row))
    return list(accumulate(hops, initial=0))
