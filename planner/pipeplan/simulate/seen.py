"""What happened, as spans and flights."""

from collections.abc import Iterable

from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Flight, Span
from pipeplan.simulate.program import Program
from pipeplan.simulate.run import Trace


def spans(program: Program, trace: Trace, numbers: Iterable[int]) -> list[Span]:
    """When these actions ran."""
    homes, actions, starts, ends = program.homes, program.actions, trace.starts, trace.signals
    if program.two_lanes:
        lanes = [int(action.kind is not Kind.FORWARD) for action in actions]
        return [Span(homes[i], lanes[i], actions[i], starts[i], ends[i]) for i in numbers]
    return [Span(homes[i], 0, actions[i], starts[i], ends[i]) for i in numbers]


def flights(program: Program, trace: Trace, numbers: Iterable[int]) -> list[Flight]:
    """When the tensors travelled that these actions sent."""
    n, found = len(program.actions), []
    for i in numbers:
        kind, stage, micro_batch, part = program.actions[i]
        target = stage + 1 if kind is Kind.FORWARD else stage - 1
        found.append(Flight(stage, target, micro_batch, part, trace.left[i], trace.gone[i], trace.signals[n + i]))
    return found
