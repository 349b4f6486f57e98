"""What a schedule and a placement fix together, before any time is known; kept, because a search times it often."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate

from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.simulate.cells import Cells
from pipeplan.simulate.dependencies import find_needs
from pipeplan.simulate.fit import check_actions
from pipeplan.simulate.numbers import NOTHING

Groups = tuple[tuple[int, ...], ...]

KEPT = 4
"""How many structures are kept: those of the schedules that were simulated last."""


@dataclass(frozen=True)
class Structure:
    """A numbered schedule without its times. Nobody may change its lists.

    Attributes
    ----------
    actions : list of Action
        By number.
    homes : list of int
        The device of each action.
    slices : int
        Token slices of a micro-batch.
    place : list of int
        Where the time of each action stands in a table by kind, stage and slice.
    two_lanes : bool
    lanes : list of list of int
        Lane ``2 d`` and, for two-lane devices, ``2 d + 1`` of device d.
    needs : list of tuple of int
        The signals that each action waits for, besides its lane.
    crosses : list of list of bool
        For each boundary and residue of the micro-batch's number: whether the tensor goes to another device.
    channel_of : list of int
        The channel into which each action sends, or `NOTHING`. Forward boundaries come first, then backward ones, each
        with its pairs of replicas in the order of `Pipeline.transfers`.
    collectives : list of list of int
        Actions that begin together: the reductions of a stage, one a replica, or of all stages that are tied.
    meeting_of : list of int
        Index into ``collectives`` of each action, or `NOTHING`.
    """

    actions: list[Action]
    homes: list[int]
    slices: int
    place: list[int]
    two_lanes: bool
    lanes: list[list[int]]
    needs: list[tuple[int, ...]]
    crosses: list[list[bool]]
    channel_of: list[int]
    collectives: list[list[int]]
    meeting_of: list[int]


_kept: OrderedDict[tuple[Schedule, Groups, Groups], Structure] = OrderedDict()


def find_structure(schedule: Schedule, pipeline: Pipeline) -> Structure:
    """The structure of a schedule on a pipeline's placement.

    Raises
    ------
    PlanError
        If actions are on other devices than theirs, missing or doubled.
    """
    key = (schedule, pipeline.placement, pipeline.tied)
    if key in _kept:
        _kept.move_to_end(key)
    else:
        _kept[key] = _structure(schedule, pipeline)
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    return _kept[key]


def _structure(schedule: Schedule, pipeline: Pipeline) -> Structure:
    check_actions(schedule, pipeline)
    actions = list(schedule.actions())
    homes = [device for device, order in enumerate(schedule.orders) for _ in order]
    cells = Cells(schedule, pipeline, actions, homes)
    crosses = _crossings(pipeline)
    collectives = cells.collectives()
    meeting_of = [NOTHING] * len(actions)
    for meeting, together in enumerate(collectives):
        for i in together:
            meeting_of[i] = meeting
    return Structure(
        actions=actions,
        homes=homes,
        slices=cells.slices,
        place=_places(actions, len(pipeline.stages), cells.slices),
        two_lanes=schedule.two_lanes,
        lanes=_lanes(schedule),
        needs=find_needs(schedule, pipeline, cells, crosses),
        crosses=crosses,
        channel_of=_channel_of(actions, pipeline, crosses),
        collectives=collectives,
        meeting_of=meeting_of,
    )


def _places(actions: list[Action], stages: int, slices: int) -> list[int]:
    first = {kind: number * stages for number, kind in enumerate(Kind)}
    return [(first[kind] + stage) * slices + part for kind, stage, _, part in actions]


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
