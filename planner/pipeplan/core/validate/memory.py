"""Memory that a list holds, counted action by action, without any times.

::

    F0  F1  B0  F2  B1  B2          micro-batches held while each action runs
     1   2   2   2   2   1

A device with one lane does one thing after another, so the count is exact. With two lanes it is an upper bound: a
forward waits for the backwards ahead of it in the list, and the other lane's workspace may be there at the same time.
"""

from collections.abc import Iterator, Sequence

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.units import format_bytes
from pipeplan.core.validate.schedule import refuse


def validate_memory(schedule: Schedule, pipeline: Pipeline) -> tuple[int, ...]:
    """Check every device's peak against its limit.

    Returns
    -------
    tuple of int
        Bytes, one a device: its peak, or with two lanes a bound on it.

    Raises
    ------
    PlanError
        Listing every device that holds more than it has.
    """
    lists = enumerate(schedule.orders)
    peaks = tuple(peak_of_list(order, device, pipeline, schedule.two_lanes) for device, order in lists)
    refuse(f"the schedule {schedule.family!r}", _excess(peaks, schedule, pipeline))
    return peaks


def most_in_flight(order: Sequence[Action], stage: int) -> int:
    """The most micro-batches of a stage whose forward has come in the list and whose backward has not."""
    most, held = 0, set[int]()
    for action in order:
        if action.stage == stage and action.kind is Kind.FORWARD:
            held.add(action.micro_batch)
            most = max(most, len(held))
        elif action.stage == stage and action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT) and action.slice == 0:
            held.discard(action.micro_batch)
    return most


def peak_of_list(order: Sequence[Action], device: int, pipeline: Pipeline, two_lanes: bool) -> int:
    """Most bytes that a device holds while it runs a list."""
    own = [pipeline.stages[stage] for stage in pipeline.stages_on[device]]
    other_lane = max((stage.beside for stage in own), default=0) if two_lanes else 0
    held = pipeline.runtime[device] + sum(stage.resident for stage in own)
    peak = held
    for action in order:
        stage = pipeline.stages[action.stage]
        kept = stage.held if stage.held_after_input_gradient is None else stage.held_after_input_gradient
        if action.kind is Kind.FORWARD:
            held += stage.held
        peak = max(peak, held + stage.workspace + other_lane)
        if action.kind is Kind.BACKWARD:
            held -= stage.held
        elif action.kind is Kind.INPUT_GRADIENT:
            held -= stage.held - kept
        elif action.kind is Kind.WEIGHT_GRADIENT:
            held -= kept
    return peak


def _excess(peaks: Sequence[int], schedule: Schedule, pipeline: Pipeline) -> Iterator[str]:
    for device, (peak, limit) in enumerate(zip(peaks, pipeline.limits, strict=True)):
        if peak > limit:
            stages = sorted({action.stage for action in schedule.orders[device]})
            flights = ", ".join(f"{most_in_flight(schedule.orders[device], s)} of stage {s}" for s in stages)
            yield (
                f"device {device} holds {format_bytes(peak)} of {format_bytes(limit)}, with micro-batches in flight: "
                f"{flights}; hold fewer, make them smaller, or move layers to a neighbour"
            )
