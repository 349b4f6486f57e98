"""A schedule and a pipeline, numbered: what the event loop runs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.simulate.fit import check_pipeline
from pipeplan.simulate.structure import Structure, find_structure


@dataclass(frozen=True)
class Channel:
    """One boundary in one direction, between one pair of replicas.

    ``wires`` are numbers of what the transfer keeps busy; ``alone`` says that no other channel uses them.
    """

    occupancy: int
    latency: int
    wires: tuple[int, ...]
    alone: bool


@dataclass(frozen=True)
class Program(Structure):
    """A numbered schedule with its times.

    Attributes
    ----------
    durations : list of int
        Nanoseconds, by number.
    channels : tuple of Channel
        As ``channel_of`` counts them.
    overlap : Overlap
    """

    durations: list[int]
    channels: tuple[Channel, ...]
    overlap: Overlap


def number(schedule: Schedule, pipeline: Pipeline, share: bool) -> Program:
    """Number a schedule's actions and find what each of them waits for.

    Raises
    ------
    PlanError
        If schedule and pipeline do not fit each other, or actions are missing or doubled.
    """
    check_pipeline(schedule, pipeline)
    structure = find_structure(schedule, pipeline)
    return Program(
        **{field.name: getattr(structure, field.name) for field in fields(structure)},
        durations=_durations(structure.actions, pipeline.stages, schedule.two_lanes),
        channels=_channels(pipeline, share, structure.crosses),
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


def _durations(actions: list[Action], stages: Sequence[Stage], two_lanes: bool) -> list[int]:
    table = [two_lane_durations(stage) if two_lanes else one_lane_durations(stage) for stage in stages]
    flat = {(s, kind): duration for s, durations in enumerate(table) for kind, duration in durations.items()}
    by_kind = {kind: [flat[s, kind] for s in range(len(stages))] for kind in Kind}
    return [by_kind[action.kind][action.stage] for action in actions]


def _channels(pipeline: Pipeline, share: bool, crosses: list[list[bool]]) -> tuple[Channel, ...]:
    transfers: list[Transfer] = list(chain(*pipeline.transfers, *pipeline.returns))
    if not share:  # a wire for each channel; one that kept nothing busy still keeps nothing busy
        own = [(c,) if transfer.resources else () for c, transfer in enumerate(transfers)]
        return tuple(Channel(t.occupancy, t.latency, wires, True) for t, wires in zip(transfers, own, strict=True))
    names: dict[str, int] = {}
    for transfer in transfers:
        for resource in transfer.resources:
            names.setdefault(resource, len(names))
    wires = [tuple(names[resource] for resource in dict.fromkeys(t.resources)) for t in transfers]
    uses = [0] * len(names)
    for row, used in zip(wires, chain(*crosses, *crosses), strict=True):
        for wire in row:
            uses[wire] += used
    alone = [all(uses[wire] <= 1 for wire in row) for row in wires]
    return tuple(
        Channel(t.occupancy, t.latency, row, each) for t, row, each in zip(transfers, wires, alone, strict=True)
    )
