"""A schedule and a pipeline, numbered: what the event loop runs.

Every action has a number, device by device in list order. A *signal* is something that an action may wait for:

::

    signal i         action i has ended
    signal n + i     the tensor that action i sent has arrived          (n actions)

    0F1 ──ended──▶ 0B1         same device: the action's end
     └──arrived──▶ 1F1         other device: the tensor's arrival
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeplan.cluster import Overlap
from pipeplan.errors import PlanError
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan.schedule import Action, Kind, Schedule

NOTHING = -1
"""No action, no channel."""

SHOWN = 8
"""How many faults an error spells out."""


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
        needs=_needs(schedule, pipeline, actions),
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
    backward = stage.backward or stage.input_gradient + stage.weight_gradient
    whole = stage.forward + backward
    return {
        Kind.FORWARD: whole,
        Kind.BACKWARD: whole,
        Kind.INPUT_GRADIENT: -(-stage.input_gradient * whole // backward) if backward else 0,
        Kind.WEIGHT_GRADIENT: -(-stage.weight_gradient * whole // backward) if backward else 0,
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


class _Cells:
    """Numbers of the actions of every (stage, micro-batch, slice), in one flat row: slices fastest, stages slowest."""

    def __init__(self, schedule: Schedule, stages: int, actions: list[Action]) -> None:
        self.slices = 1 + max((action.slice for action in actions), default=0)
        self.stride = schedule.micro_batches * self.slices
        count = stages * self.stride
        if 2 * count > len(actions):
            raise PlanError(
                f"the lists are incomplete: {stages} stages, {schedule.micro_batches} micro-batches and {self.slices} "
                f"slices need at least {2 * count} forwards and backwards, there are {len(actions)} actions"
            )
        self.forward = [NOTHING] * count
        self.backward = [NOTHING] * count
        self.weight = [NOTHING] * count
        self.split = [False] * count
        self.reduce = [NOTHING] * stages
        self.update = [NOTHING] * stages
        self.last_backward = [NOTHING] * stages
        for i, action in enumerate(actions):
            self._enter(i, action)
        self._check_complete(actions)

    def cell(self, action: Action) -> int:
        """Where the action's (stage, micro-batch, slice) stands in the row."""
        return action.stage * self.stride + action.micro_batch * self.slices + action.slice

    def _enter(self, i: int, action: Action) -> None:
        kind, stage = action.kind, action.stage
        if kind is Kind.FORWARD:
            row, place = self.forward, self.cell(action)
        elif kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT:
            row, place = self.backward, self.cell(action)
            self.split[place] = kind is Kind.INPUT_GRADIENT
            self.last_backward[stage] = i
        elif kind is Kind.WEIGHT_GRADIENT:
            row, place = self.weight, self.cell(action)
            self.last_backward[stage] = i
        else:
            row, place = (self.reduce if kind is Kind.REDUCE else self.update), stage
        if row[place] != NOTHING:
            raise PlanError(f"{action} is there twice, or beside another backward of the same micro-batch; keep one")
        row[place] = i

    def _check_complete(self, actions: list[Action]) -> None:
        faults = []
        for place, (forward, backward, weight) in enumerate(zip(self.forward, self.backward, self.weight, strict=True)):
            stage, rest = divmod(place, self.stride)
            micro_batch, part = divmod(rest, self.slices)
            if forward == NOTHING:
                faults.append(str(Action(Kind.FORWARD, stage, micro_batch, part)))
            if backward == NOTHING:
                faults.append(str(Action(Kind.BACKWARD, stage, micro_batch, part)))
            elif self.split[place] and weight == NOTHING:
                faults.append(str(Action(Kind.WEIGHT_GRADIENT, stage, micro_batch, part)))
            elif weight != NOTHING and not self.split[place]:
                raise PlanError(
                    f"{actions[weight]} stands beside the joined {actions[backward]}; drop it or split both"
                )
        if faults:
            more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise PlanError(f"the lists are incomplete: missing {', '.join(faults[:SHOWN])}{more}")


def _needs(schedule: Schedule, pipeline: Pipeline, actions: list[Action]) -> list[tuple[int, ...]]:
    n, stages = len(actions), len(pipeline.stages)
    cells = _Cells(schedule, stages, actions)
    forward, backward, stride = cells.forward, cells.backward, cells.stride
    # what to add to a number of stage s to get the signal that stage s + 1 (or, on the way back, s - 1) waits for
    shift = [0 if a == b else n for a, b in pairwise(pipeline.placement)]
    ahead = _backwards_ahead(schedule) if schedule.two_lanes else None

    needs: list[tuple[int, ...]] = []
    for i, action in enumerate(actions):
        kind, stage = action.kind, action.stage
        wanted: list[int] = []
        if kind is Kind.FORWARD:
            cell = cells.cell(action)
            if stage > 0:
                wanted.append(forward[cell - stride] + shift[stage - 1])
            if action.slice > 0:
                wanted.append(forward[cell - 1])
            if ahead is not None and ahead[i] != NOTHING:
                wanted.append(ahead[i])
        elif kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT:
            cell = cells.cell(action)
            wanted.append(forward[cell])
            if stage < stages - 1:
                wanted.append(backward[cell + stride] + shift[stage])
            if action.slice < cells.slices - 1:
                wanted.append(backward[cell + 1])
        elif kind is Kind.WEIGHT_GRADIENT:
            wanted.append(backward[cells.cell(action)])
        else:
            # a stage's backwards end in list order, so the last one in the list stands for all of them
            wanted.append(cells.last_backward[stage])
            if kind is Kind.UPDATE and cells.reduce[stage] != NOTHING:
                wanted.append(cells.reduce[stage])
        needs.append(tuple(wanted))
    return needs


def _backwards_ahead(schedule: Schedule) -> list[int]:
    """For every action, the last one of the device's second lane that stands before it in the list."""
    result = []
    i = 0
    for order in schedule.orders:
        last = NOTHING
        for action in order:
            result.append(last)
            if action.kind is not Kind.FORWARD:
                last = i
            i += 1
    return result


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
