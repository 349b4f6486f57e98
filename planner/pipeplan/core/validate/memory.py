"""Memory use of a device's action list, counted action by action, without times.

::

    F0  F1  B0  F2  B1  B2          micro-batches held while each action runs
     1   2   2   2   2   1

A device with one lane runs one action after another, so the count is exact. With two lanes it is an upper bound: a
forward waits for the backwards before it in the list, and the other lane's workspace may be allocated at the same time.
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
        Peak bytes of each device, or with two lanes an upper bound on it.

    Raises
    ------
    PlanError
        Listing every device that holds more than it has.
    """
    peaks = peaks_of_lists(schedule, pipeline)
    refuse(f"the schedule {schedule.family!r}", _excess(peaks, schedule, pipeline))
    return peaks


def peaks_of_lists(schedule: Schedule, pipeline: Pipeline) -> tuple[int, ...]:
    """Return the peak bytes of each device, or with two lanes an upper bound on it."""
    lists = schedule.first_lists
    numbers: dict[object, int] = {}  # of lists that are alike but for the numbers of micro-batches
    number = [
        numbers.setdefault((*zip(*(action[:2] for action in order), strict=True),), len(numbers)) for order in lists
    ]
    known: dict[object, int] = {}
    peaks: list[int] = []
    for device in range(len(schedule.orders)):
        own = device // schedule.lanes
        key = pipeline.runtime[device], pipeline.stages_on[device], number[own]
        if key not in known:
            known[key] = peak_of_list(lists[own], device, pipeline, schedule.two_lanes)
        peaks.append(known[key])
    return tuple(peaks)


def most_in_flight(order: Sequence[Action], stage: int) -> int:
    """Return the largest number of micro-batches, or slices, of a stage between their forward and their backward."""
    most, held = 0, set[tuple[int, int]]()
    for action in order:
        if action.stage == stage and action.kind is Kind.FORWARD:
            held.add((action.micro_batch, action.slice))
            most = max(most, len(held))
        elif action.stage == stage and action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            held.discard((action.micro_batch, action.slice))
    return most


def peak_of_list(order: Sequence[Action], device: int, pipeline: Pipeline, two_lanes: bool) -> int:
    """Return the peak bytes of a device while it runs a list."""
    own = [pipeline.stages[stage] for stage in pipeline.stages_on[device]]
    other_lane = max((stage.forward_lane_workspace for stage in own), default=0) if two_lanes else 0
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
            counts = ", ".join(f"{most_in_flight(schedule.orders[device], s)} of stage {s}" for s in stages)
            yield (
                f"device {device} holds {format_bytes(peak)} of {format_bytes(limit)}, with micro-batches in flight: "
                f"{counts}; hold fewer, make them smaller, or move layers to a neighbour"
            )
