"""What every device holds, from the spans of its actions.

::

    held        ┌──────────────┐             F starts: +held            B ends: −held
            ┌┐  │┌┐          ┌┐│             any action runs: +workspace
    base ───┘└──┘└┴──────────┴┘└────         resident + runtime
             U    F           B

A split backward frees ``held − held_after_input_gradient`` at the end of I and the rest at the end of W.
"""

from collections.abc import Sequence
from itertools import groupby

from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Span, Step


def memory_lines(spans: Sequence[Span], pipeline: Pipeline) -> tuple[tuple[Step, ...], ...]:
    """One line of steps a device.

    At one instant what ends frees its memory first. Actions that take no time still show: their peak is a step of its
    own at the same instant.
    """
    of_device: list[list[Span]] = [[] for _ in range(pipeline.devices)]
    for span in spans:
        of_device[span.device].append(span)
    base = list(pipeline.runtime)
    for stage, devices in zip(pipeline.stages, pipeline.placement, strict=True):
        for device in devices:
            base[device] += stage.resident
    effects = [{kind: _effect(stage, kind) for kind in Kind} for stage in pipeline.stages]
    return tuple(_line(own, effects, held) for own, held in zip(of_device, base, strict=True))


def _effect(stage: Stage, kind: Kind) -> tuple[int, int]:
    """Bytes that come at the start of an action, and bytes that go at its end."""
    later = stage.held if stage.held_after_input_gradient is None else stage.held_after_input_gradient
    taken = stage.held if kind is Kind.FORWARD else 0
    freed = {Kind.BACKWARD: stage.held, Kind.INPUT_GRADIENT: stage.held - later, Kind.WEIGHT_GRADIENT: later}
    workspace = stage.beside if kind is Kind.FORWARD else stage.workspace
    return workspace + taken, workspace + freed.get(kind, 0)


def _line(spans: list[Span], effects: list[dict[Kind, tuple[int, int]]], held: int) -> tuple[Step, ...]:
    events: list[tuple[int, bool, int]] = []  # (time, whether after the frees of that instant, change)
    for span in spans:
        comes, goes = effects[span.action.stage][span.action.kind]
        events.append((span.start, True, comes))
        events.append((span.end, span.start == span.end, -goes))
    events.sort(key=lambda event: event[:2])

    steps = [] if events and events[0][0] == 0 else [Step(0, held)]
    for time, group in groupby(events, key=lambda event: event[0]):
        peak = 0
        for _, after_frees, change in group:
            held += change
            if after_frees:
                peak = max(peak, held)
        if peak > held:
            steps.append(Step(time, peak))
        if not steps or steps[-1].held != held:
            steps.append(Step(time, held))
    return tuple(steps)
