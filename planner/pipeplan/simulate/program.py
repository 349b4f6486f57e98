"""A schedule and a pipeline, numbered: what the event loop runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeplan.cluster import Overlap
from pipeplan.errors import PlanError
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.simulate.dependencies import find_needs
from pipeplan.simulate.numbers import NOTHING


@dataclass(frozen=True)
class Channel:
    """One boundary in one direction.

    ``wires`` are numbers of what the transfer keeps busy; ``alone`` says that no other channel uses them.
    """

    occupancy: int
    latency: int
    wires: tuple[int, ...]
    alone: bool


@dataclass(frozen=True)
class Program:
    """A numbered schedule.

    Attributes
    ----------
    actions : list of Action
        By number.
    lanes : list of list of int
        Lane ``2 d`` and, for two-lane devices, ``2 d + 1`` of device d.
    durations : list of int
        Nanoseconds, by number.
    needs : list of tuple of int
        The signals that each action waits for, besides its lane.
    channel_of : list of int
        Index into ``channels`` of what each action sends, or `NOTHING`.
    channels : tuple of Channel
        Forward boundaries, then backward ones.
    overlap : Overlap
    """

    actions: list[Action]
    lanes: list[list[int]]
    durations: list[int]
    needs: list[tuple[int, ...]]
    channel_of: list[int]
    channels: tuple[Channel, ...]
    overlap: Overlap


def number(schedule: Schedule, pipeline: Pipeline, share: bool) -> Program:
    """Number a schedule's actions and find what each of them waits for.

    Raises
    ------
    PlanError
        If schedule and pipeline do not fit each other, or actions are missing or doubled.
    """
    _check_fit(schedule, pipeline)
    actions = list(schedule.actions())
    return Program(
        actions=actions,
        lanes=_lanes(schedule),
        durations=_durations(actions, pipeline.stages, schedule.two_lanes),
        needs=find_needs(schedule, pipeline, actions),
        channel_of=_channel_of(actions, pipeline),
        channels=_channels(pipeline, share),
        overlap=pipeline.overlap,
    )


def two_lane_durations(stage: Stage) -> dict[Kind, int]:
    """Nanoseconds of each action on a two-lane device.

    The lanes hold shares F : B of the device's arithmetic units, so F is slowed down by (F + B) / F and what runs on
    the other lane by (F + B) / B: a forward and a joined backward take F + B each, the parts of a split backward
    their fraction of that (rounded up). Reduction and update wait for memory and wires, not for arithmetic units.
    """
    backward, whole = stage.backward, stage.forward + stage.backward

    def slowed(part: int) -> int:
        return -(-part * whole // backward) if backward else part

    return {
        Kind.FORWARD: whole,
        Kind.BACKWARD: whole,
        Kind.INPUT_GRADIENT: slowed(stage.input_gradient),
        Kind.WEIGHT_GRADIENT: slowed(stage.weight_gradient),
        Kind.REDUCE: stage.reduce,
        Kind.UPDATE: stage.update,
    }


def one_lane_durations(stage: Stage) -> dict[Kind, int]:
    """Nanoseconds of each action on an ordinary device."""
    return {
        Kind.FORWARD: stage.forward,
        Kind.BACKWARD: stage.backward,
        Kind.INPUT_GRADIENT: stage.input_gradient,
        Kind.WEIGHT_GRADIENT: stage.weight_gradient,
        Kind.REDUCE: stage.reduce,
        Kind.UPDATE: stage.update,
    }


def _check_fit(schedule: Schedule, pipeline: Pipeline) -> None:
    if len(schedule.orders) != pipeline.devices:
        raise PlanError(
            f"the schedule has lists for {len(schedule.orders)} devices, the pipeline {pipeline.devices}; "
            "write one list a device, empty where a device does nothing"
        )
    stages = len(pipeline.stages)
    for device, order in enumerate(schedule.orders):
        for action in order:
            if action.stage >= stages:
                raise PlanError(f"{action} on device {device}: the pipeline has stages 0 to {stages - 1} only")
            if pipeline.placement[action.stage] != device:
                owner = pipeline.placement[action.stage]
                raise PlanError(f"{action} stands in device {device}'s list, but stage {action.stage} is on {owner}")


def _lanes(schedule: Schedule) -> list[list[int]]:
    lanes: list[list[int]] = []
    first = 0
    for order in schedule.orders:
        numbers = range(first, first + len(order))
        if schedule.two_lanes:
            lanes.append([i for i, action in zip(numbers, order, strict=True) if action.kind is Kind.FORWARD])
            lanes.append([i for i, action in zip(numbers, order, strict=True) if action.kind is not Kind.FORWARD])
        else:
            lanes += [list(numbers), []]
        first += len(order)
    return lanes


def _durations(actions: list[Action], stages: Sequence[Stage], two_lanes: bool) -> list[int]:
    table = [two_lane_durations(stage) if two_lanes else one_lane_durations(stage) for stage in stages]
    flat = {(s, kind): duration for s, durations in enumerate(table) for kind, duration in durations.items()}
    by_kind = {kind: [flat[s, kind] for s in range(len(stages))] for kind in Kind}
    return [by_kind[action.kind][action.stage] for action in actions]


def _channel_of(actions: list[Action], pipeline: Pipeline) -> list[int]:
    boundaries = len(pipeline.stages) - 1
    crosses = [a != b for a, b in pairwise(pipeline.placement)]
    onward = [s if crosses[s] else NOTHING for s in range(boundaries)] + [NOTHING]
    back = [NOTHING] + [boundaries + s if crosses[s] else NOTHING for s in range(boundaries)]
    none = [NOTHING] * len(pipeline.stages)
    table = {
        Kind.FORWARD: onward,
        Kind.BACKWARD: back,
        Kind.INPUT_GRADIENT: back,
        Kind.WEIGHT_GRADIENT: none,
        Kind.REDUCE: none,
        Kind.UPDATE: none,
    }
    return [table[action.kind][action.stage] for action in actions]


def _channels(pipeline: Pipeline, share: bool) -> tuple[Channel, ...]:
    transfers: list[Transfer] = [*pipeline.transfers, *pipeline.returns]
    if not share:  # a wire for each channel; one that kept nothing busy still keeps nothing busy
        own = [(c,) if transfer.resources else () for c, transfer in enumerate(transfers)]
        return tuple(Channel(t.occupancy, t.latency, wires, True) for t, wires in zip(transfers, own, strict=True))
    names: dict[str, int] = {}
    for transfer in transfers:
        for resource in transfer.resources:
            names.setdefault(resource, len(names))
    wires = [tuple(names[resource] for resource in dict.fromkeys(t.resources)) for t in transfers]
    uses = [0] * len(names)
    for row, boundary in zip(wires, 2 * list(pairwise(pipeline.placement)), strict=True):
        for wire in row:
            uses[wire] += boundary[0] != boundary[1]
    alone = [all(uses[wire] <= 1 for wire in row) for row in wires]
    return tuple(
        Channel(t.occupancy, t.latency, row, each) for t, row, each in zip(transfers, wires, alone, strict=True)
    )
