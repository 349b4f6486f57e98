"""`Program`: a schedule on a pipeline with numbered actions and their times, the input of the event loop."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.simulate.fit import check_pipeline
from pipeplan.simulate.structure import Structure, find_structure


@dataclass(frozen=True)
class Channel:
    """Transfers over one boundary in one direction, between one pair of replicas.

    ``resources`` are the numbers of the link resources that the transfer occupies; ``alone`` is true if no other
    channel uses them.
    """

    occupancy: int
    latency: int
    resources: tuple[int, ...]
    alone: bool


@dataclass(frozen=True)
class Program(Structure):
    """A numbered schedule with its times.

    Attributes
    ----------
    durations : list of int
        Nanoseconds, by number of the action.
    channels : tuple of Channel
        Numbered as in ``channel_of``.
    overlap : Overlap
    begins : tuple of int
        Nanoseconds before which no action of each device begins: until its parameters are gathered.
    """

    durations: list[int]
    channels: tuple[Channel, ...]
    overlap: Overlap
    begins: tuple[int, ...]


def build_program(schedule: Schedule, pipeline: Pipeline, share: bool) -> Program:
    """Number a schedule's actions and find the dependencies of each.

    Raises
    ------
    PlanError
        If schedule and pipeline do not match, or actions are missing or doubled.
    """
    check_pipeline(schedule, pipeline)
    structure = find_structure(schedule, pipeline)
    return Program(
        **{field.name: getattr(structure, field.name) for field in fields(structure)},
        durations=_durations(structure, pipeline.stages),
        channels=_channels(pipeline, share, structure.crosses),
        overlap=pipeline.overlap,
        begins=tuple(
            max((pipeline.begins[s] for s in own if structure.batches == 1), default=0) for own in pipeline.stages_on
        ),
    )


def two_lane_duration(stage: Stage, kind: Kind, part: int) -> int:
    """Return the nanoseconds of an action on a two-lane device.

    The lanes have shares F : B of the device's arithmetic units, so F is slowed down by (F + B) / F and actions on the
    other lane by (F + B) / B. A forward and a joined backward take F + B each, the parts of a split backward their
    fraction of that (rounded up). Reduction and update wait for memory and links, not for arithmetic units.
    """
    alone = stage.duration(kind, part)
    if not kind.per_micro_batch:
        return alone
    backward = stage.duration(Kind.BACKWARD, part)
    whole = stage.duration(Kind.FORWARD, part) + backward
    if kind is Kind.FORWARD or kind is Kind.BACKWARD:
        return whole
    return -(-alone * whole // backward) if backward else alone


def _durations(structure: Structure, stages: Sequence[Stage]) -> list[int]:
    """Return the nanoseconds of each action, looked up in a table by kind, stage and slice."""
    for s, stage in enumerate(stages):
        if stage.slices not in (1, structure.slices):
            raise PlanError(f"stage {s} has times for {stage.slices} slices, the schedule has {structure.slices}")
    duration = two_lane_duration if structure.two_lanes else Stage.duration
    table = [duration(stage, kind, part) for kind in Kind for stage in stages for part in range(structure.slices)]
    return list(map(table.__getitem__, structure.place))


def _channels(pipeline: Pipeline, share: bool, crosses: list[list[bool]]) -> tuple[Channel, ...]:
    """Return the channels of all boundaries, forward ones first, with numbered link resources."""
    transfers: list[Transfer] = list(chain(*pipeline.transfers, *pipeline.returns))
    if not share:  # one resource per channel; a channel without resources keeps none
        own = [(c,) if transfer.resources else () for c, transfer in enumerate(transfers)]
        return tuple(Channel(t.occupancy, t.latency, numbers, True) for t, numbers in zip(transfers, own, strict=True))
    names: dict[str, int] = {}
    for transfer in transfers:
        for name in transfer.resources:
            names.setdefault(name, len(names))
    resources = [tuple(names[name] for name in dict.fromkeys(t.resources)) for t in transfers]
    uses = [0] * len(names)  # number of channels that use each resource
    for row, used in zip(resources, chain(*crosses, *crosses), strict=True):
        for resource in row:
            uses[resource] += used
    alone = [all(uses[resource] <= 1 for resource in row) for row in resources]
    return tuple(
        Channel(t.occupancy, t.latency, row, each) for t, row, each in zip(transfers, resources, alone, strict=True)
    )
