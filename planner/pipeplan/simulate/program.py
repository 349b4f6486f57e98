"""A schedule and a pipeline, numbered: what the event loop runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from pipeplan.cluster import Overlap
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.simulate.cells import Cells
from pipeplan.simulate.dependencies import find_needs
from pipeplan.simulate.fit import check_fit
from pipeplan.simulate.numbers import NOTHING


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
class Program:
    """A numbered schedule.

    Attributes
    ----------
    actions : list of Action
        By number.
    homes : list of int
        The device of each action.
    lanes : list of list of int
        Lane ``2 d`` and, for two-lane devices, ``2 d + 1`` of device d.
    durations : list of int
        Nanoseconds, by number.
    needs : list of tuple of int
        The signals that each action waits for, besides its lane.
    channel_of : list of int
        Index into ``channels`` of what each action sends, or `NOTHING`.
    channels : tuple of Channel
        Forward boundaries, then backward ones, each with its pairs of replicas in the order of `Pipeline.transfers`.
    collectives : list of list of int
        Actions that begin together: a stage's reductions, one a replica.
    meeting_of : list of int
        Index into ``collectives`` of each action, or `NOTHING`.
    overlap : Overlap
    """

    actions: list[Action]
    homes: list[int]
    lanes: list[list[int]]
    durations: list[int]
    needs: list[tuple[int, ...]]
    channel_of: list[int]
    channels: tuple[Channel, ...]
    collectives: list[list[int]]
    meeting_of: list[int]
    overlap: Overlap


def number(schedule: Schedule, pipeline: Pipeline, share: bool) -> Program:
    """Number a schedule's actions and find what each of them waits for.

    Raises
    ------
    PlanError
        If schedule and pipeline do not fit each other, or actions are missing or doubled.
    """
    check_fit(schedule, pipeline)
    actions = list(schedule.actions())
    homes = [device for device, order in enumerate(schedule.orders) for _ in order]
    cells = Cells(schedule, pipeline, actions, homes)
    crosses = _crossings(pipeline)
    collectives = cells.collectives()
    meeting_of = [NOTHING] * len(actions)
    for meeting, together in enumerate(collectives):
        for i in together:
            meeting_of[i] = meeting
    return Program(
        actions=actions,
        homes=homes,
        lanes=_lanes(schedule),
        durations=_durations(actions, pipeline.stages, schedule.two_lanes),
        needs=find_needs(schedule, pipeline, actions, cells, crosses),
        channel_of=_channel_of(actions, pipeline, crosses),
        channels=_channels(pipeline, share, crosses),
        collectives=collectives,
        meeting_of=meeting_of,
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


def _crossings(pipeline: Pipeline) -> list[list[bool]]:
    """For each boundary and residue of the micro-batch's number: whether the tensor goes to another device."""
    return [
        [pipeline.device_of(s, m) != pipeline.device_of(s + 1, m) for m in range(period)]
        for s, period in enumerate(pipeline.periods)
    ]


def _channel_of(actions: list[Action], pipeline: Pipeline, crosses: list[list[bool]]) -> list[int]:
    first = [0, *accumulate(len(row) for row in crosses)]
    onward = [
        [a + p if other else NOTHING for p, other in enumerate(row)] for a, row in zip(first, crosses, strict=False)
    ]
    back = [[c + first[-1] if c != NOTHING else NOTHING for c in row] for row in onward]
    nowhere = [[NOTHING]]
    none = nowhere * len(pipeline.stages)
    table = {
        Kind.FORWARD: onward + nowhere,
        Kind.BACKWARD: nowhere + back,
        Kind.INPUT_GRADIENT: nowhere + back,
        Kind.WEIGHT_GRADIENT: none,
        Kind.REDUCE: none,
        Kind.UPDATE: none,
    }
    rows = [table[action.kind][action.stage] for action in actions]
    return [row[action.micro_batch % len(row)] for action, row in zip(actions, rows, strict=True)]


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
