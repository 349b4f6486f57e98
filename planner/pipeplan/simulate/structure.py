"""`Structure`: the numbered actions of a schedule on a placement and their dependencies, without times.

Actions are numbered device by device in list order. A *signal* is an event that an action may wait for:

::

    signal i         action i has ended
    signal n + i     the tensor that action i sent has arrived          (n actions)

    0F1 ──ended──▶ 0B1         same device: the action's end
     └──arrived──▶ 1F1         other device: the tensor's arrival

Structures are cached, because a search simulates the same schedule often.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, cycle, product
from operator import add

from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.wording import some
from pipeplan.simulate.fit import check_actions
from pipeplan_formulations.common.dependencies import OF_MICRO_BATCHES, OF_STEPS, Part

NOTHING = -1
"""No action, no channel."""

SHOWN = 8
"""Largest number of faults listed in an error."""

Groups = tuple[tuple[int, ...], ...]

DELAYED = 2
"""Of several batches, the number between the one that gives a gradient and the first one that it changes."""
KEPT = 4
"""Number of cached structures: those of the schedules simulated last."""


@dataclass(frozen=True)
class Structure:
    """A numbered schedule without times. It is cached and shared, so its lists must not be changed.

    Attributes
    ----------
    actions : list of Action
        By number.
    homes : list of int
        The device of each action.
    slices : int
        Token slices of a micro-batch.
    place : list of int
        Index of each action's time in a table by kind, stage and slice.
    two_lanes : bool
    batches : int
    lanes : list of list of int
        Lane ``2 d`` and, for two-lane devices, ``2 d + 1`` of device d; through several batches sums and gathers run on
        the latter.
    needs : list of tuple of int
        The signals that each action waits for, besides its lane.
    crosses : list of list of bool
        For each boundary and residue of the micro-batch's number: whether the tensor goes to another device.
    channel_of : list of int
        The channel into which each action sends, or `NOTHING`. Forward boundaries come first, then backward ones, each
        with its pairs of replicas in the order of `Pipeline.transfers`.
    collectives : list of list of int
        Actions that begin together: the reductions of a stage, one per replica, or of all stages that are tied; on a
        coupled pipeline also the passes of a stage.
    collective_of : list of int
        Index into ``collectives`` of each action, or `NOTHING`.
    """

    actions: list[Action]
    homes: list[int]
    slices: int
    place: list[int]
    two_lanes: bool
    batches: int
    lanes: list[list[int]]
    needs: list[tuple[int, ...]]
    crosses: list[list[bool]]
    channel_of: list[int]
    collectives: list[list[int]]
    collective_of: list[int]


_kept: OrderedDict[tuple[Schedule, Groups, Groups, bool], Structure] = OrderedDict()


def find_structure(schedule: Schedule, pipeline: Pipeline) -> Structure:
    """Return the structure of a schedule on a pipeline's placement, from the cache if possible.

    Raises
    ------
    PlanError
        If actions are on wrong devices, missing or doubled.
    """
    key = (schedule, pipeline.placement, pipeline.tied, pipeline.coupled)
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
    table = ActionTable(schedule, pipeline, actions, homes)
    crosses = _crossings(pipeline)
    collectives = table.collectives()
    collective_of = [NOTHING] * len(actions)
    for collective, together in enumerate(collectives):
        for i in together:
            collective_of[i] = collective
    return Structure(
        actions=actions,
        homes=homes,
        slices=table.slices,
        place=_places(actions, len(pipeline.stages), table.slices),
        two_lanes=schedule.two_lanes,
        batches=table.batches,
        lanes=_lanes(schedule, table.batches),
        needs=find_needs(schedule, pipeline, table, crosses),
        crosses=crosses,
        channel_of=_channel_of(actions, pipeline, crosses),
        collectives=collectives,
        collective_of=collective_of,
    )


def _places(actions: list[Action], stages: int, slices: int) -> list[int]:
    first = {kind: number * stages for number, kind in enumerate(Kind)}
    return [(first[kind] + stage) * slices + part for kind, stage, _, part in actions]


BESIDE = frozenset({Kind.REDUCE, Kind.GATHER})
"""What runs beside the list of a device through several batches."""


def _lanes(schedule: Schedule, batches: int) -> list[list[int]]:
    lanes: list[list[int]] = []
    first = 0
    on_first = frozenset({Kind.FORWARD}) if schedule.two_lanes else frozenset(Kind) - (BESIDE if batches > 1 else set())
    for order in schedule.orders:
        numbers = range(first, first + len(order))
        lanes.append([i for i, action in zip(numbers, order, strict=True) if action.kind in on_first])
        lanes.append([i for i, action in zip(numbers, order, strict=True) if action.kind not in on_first])
        first += len(order)
    return lanes


def _crossings(pipeline: Pipeline) -> list[list[bool]]:
    """Return for each boundary and residue of the micro-batch's number whether the tensor changes the device."""
    return [
        [pipeline.device_of(s, m) != pipeline.device_of(s + 1, m) for m in range(period)]
        for s, period in enumerate(pipeline.periods)
    ]


def _channel_of(actions: list[Action], pipeline: Pipeline, crosses: list[list[bool]]) -> list[int]:
    # Channels by stage and residue of the micro-batch's number, for forwards and for backwards.
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
        Kind.GATHER: none,
    }
    rows = [table[action.kind][action.stage] for action in actions]
    return [row[action.micro_batch % len(row)] for action, row in zip(actions, rows, strict=True)]


class ActionTable:
    """Numbers of the actions of every (stage, micro-batch, slice), and of what every replica does once per batch.

    Entries of (stage, micro-batch, slice) are in one flat list: slices vary fastest, stages slowest. Replicas are
    numbered consecutively, stage by stage, and the batches of each.

    Attributes
    ----------
    forward, backward, weight : list of int
        One number per (stage, micro-batch, slice); ``backward`` is B, or I where ``split`` is true and ``weight`` is W.
    reduce, update, gather, first_forward, last_backward : list of int
        One number per replica and batch, `NOTHING` where it has none.

    Raises
    ------
    PlanError
        If actions are missing or doubled.
    """

    def __init__(self, schedule: Schedule, pipeline: Pipeline, actions: list[Action], homes: list[int]) -> None:
        self.slices = 1 + max((action.slice for action in actions), default=0)
        self.stride = schedule.micro_batches * self.slices
        self.batches = schedule.batches
        if schedule.micro_batches % self.batches:
            raise PlanError(f"{schedule.micro_batches} micro-batches are not those of {self.batches} batches")
        self._size = max(schedule.micro_batches // self.batches, 1)
        stages = len(pipeline.stages)
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
        self.first_replica = [0, *accumulate(pipeline.replicas)]
        self.replicas = pipeline.replicas
        self.tied, self.coupled = pipeline.tied, pipeline.coupled
        none = [NOTHING] * (self.first_replica[-1] * self.batches)
        self.reduce, self.update, self.gather = none.copy(), none.copy(), none.copy()
        self.first_forward, self.last_backward = none.copy(), none.copy()
        replica_at = [{device: j for j, device in enumerate(devices)} for devices in pipeline.placement]
        for i, action in enumerate(actions):
            self._enter(i, action, self.first_replica[action.stage] + replica_at[action.stage][homes[i]])
        self._check_complete(actions, pipeline)

    def index(self, action: Action) -> int:
        """Return the index of the action's (stage, micro-batch, slice) in the flat lists."""
        return action.stage * self.stride + action.micro_batch * self.slices + action.slice

    def column(self, kind: Part, stage: int, part: int) -> list[int]:
        """Return the actions of one kind, stage and slice by micro-batch, `NOTHING` where there is none."""
        row = self.forward if kind == "F" else self.backward if kind == "I" else self.weight
        return row[stage * self.stride + part : (stage + 1) * self.stride : self.slices]

    def collectives(self) -> list[list[int]]:
        """Return the actions that run together: reductions of a stage's replicas, or of tied stages, and passes."""
        alone = set(range(len(self.replicas))).difference(*self.tied)
        groups = [*((stage,) for stage in sorted(alone)), *self.tied]
        rows = {
            (stage, batch): self.of_batch(self.reduce, stage, batch)
            for stage, batch in product(range(len(self.replicas)), range(self.batches))
        }
        together = [[i for s in group for i in rows[s, t]] for group in groups for t in range(self.batches)]
        if self.batches > 1:
            together += [self.of_batch(self.gather, *key) for key in rows]
        if self.coupled:
            together += [column[k : k + r] for r, column in self._passes() for k in range(0, len(column), r)]
        return [row for row in together if len(row) > 1 and NOTHING not in row]

    def of_batch(self, row: list[int], stage: int, batch: int) -> list[int]:
        """Return the entries of a stage's replicas for a batch."""
        a, b = self.first_replica[stage : stage + 2]
        return row[a * self.batches + batch : b * self.batches + batch : self.batches]

    def _passes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each stage's number of replicas and its actions of one kind and slice, by micro-batch."""
        for (stage, r), part in product(enumerate(self.replicas), range(self.slices)):
            for kind in ("F", "I", "W"):
                yield r, self.column(kind, stage, part)

    def _enter(self, i: int, action: Action, replica: int) -> None:
        kind = action.kind
        once = replica * self.batches + action.micro_batch // (self._size if kind.per_micro_batch else 1)
        if kind is Kind.FORWARD:
            row, place = self.forward, self.index(action)
            if self.first_forward[once] == NOTHING:
                self.first_forward[once] = i
        elif kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT:
            row, place = self.backward, self.index(action)
            self.split[place] = kind is Kind.INPUT_GRADIENT
            self.last_backward[once] = i
        elif kind is Kind.WEIGHT_GRADIENT:
            row, place = self.weight, self.index(action)
            self.last_backward[once] = i
        else:
            row, place = {Kind.REDUCE: self.reduce, Kind.UPDATE: self.update, Kind.GATHER: self.gather}[kind], once
        if row[place] != NOTHING:
            raise PlanError(f"{action} is there twice, or beside another backward of the same micro-batch; keep one")
        row[place] = i

    def _check_complete(self, actions: list[Action], pipeline: Pipeline) -> None:
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
        for stage, devices in enumerate(pipeline.placement):
            rows = [self.of_batch(self.reduce, stage, batch) for batch in range(self.batches)]
            tied = any(stage in group for group in pipeline.tied)
            for batch, row in enumerate(rows):
                if tied or any(set(each) != {NOTHING} for each in rows):  # a sum needs every replica
                    lacking = [device for device, i in zip(devices, row, strict=True) if i == NOTHING]
                    faults += [f"{Action(Kind.REDUCE, stage, batch)} on device {device}" for device in lacking]
        if faults:
            raise PlanError(f"the lists are incomplete: missing {some(faults, SHOWN)}")


def find_needs(
    schedule: Schedule, pipeline: Pipeline, table: ActionTable, crosses: list[list[bool]]
) -> list[tuple[int, ...]]:
    """Return the signals that each action waits for, besides the end of the previous action in its lane.

    Parameters
    ----------
    crosses : list of list of bool
        For each boundary and residue: whether the tensor goes to another device.
    """
    n, stages = sum(map(len, schedule.orders)), len(pipeline.stages)
    needs: list[tuple[int, ...]] = [()] * n
    # offset from the number of an action to the signal that the neighbouring stage waits for: its end or its arrival
    shifts = [[n if other else 0 for other in row] for row in crosses]
    for kind, stage, part in product(OF_MICRO_BATCHES, range(stages), range(table.slices)):
        own, replicas = table.column(kind, stage, part), pipeline.replicas[stage]
        inputs = []  # for each dependency that exists here: actions by micro-batch, and the offsets to their signals
        for other, away, slices in OF_MICRO_BATCHES[kind]:
            if 0 <= stage + away < stages and 0 <= part + slices < table.slices:
                shift = shifts[min(stage, stage + away)] if away else []
                inputs.append((table.column(other, stage + away, part + slices), shift))
        if not inputs or set(own) == {NOTHING}:
            continue
        for j in range(replicas):  # the event loop is a third faster if a device's data lies together in memory
            signals = (
                map(add, row[j::replicas], cycle(shift[j::replicas])) if shift else row[j::replicas]
                for row, shift in inputs
            )
            for i, wanted in zip(own[j::replicas], zip(*signals, strict=True), strict=True):
                if i != NOTHING:
                    needs[i] = wanted
    # a replica's backwards end in list order, so the last one in the list represents all of them
    once = {"I": table.last_backward, "W": table.last_backward, "R": table.reduce, "U": table.update}
    for what, awaited in OF_STEPS.items():
        for i, *ended in zip(once[what], *(once[other] for other in awaited), strict=True):
            if i != NOTHING:
                needs[i] = tuple(signal for signal in dict.fromkeys(ended) if signal != NOTHING)
    _wait_for_gathers(table, needs)
    if schedule.two_lanes:
        _wait_for_memory(schedule, needs)
    return needs


def _wait_for_gathers(table: ActionTable, needs: list[tuple[int, ...]]) -> None:
    """Make gathers of several batches wait for their updates, and the first forward that needs them for them."""
    for place, gather in enumerate(table.gather):
        if gather != NOTHING:
            needs[gather] = (table.update[place],)
            if place % table.batches + DELAYED < table.batches:
                first = table.first_forward[place + DELAYED]
                needs[first] = (*needs[first], gather)


def _wait_for_memory(schedule: Schedule, needs: list[tuple[int, ...]]) -> None:
    """Make each forward wait for the last action before it in the list that runs on its device's second lane."""
    i = 0
    for order in schedule.orders:
        last = NOTHING
        for action in order:
            if action.kind is not Kind.FORWARD:
                last = i
            elif last != NOTHING:
                needs[i] = (*needs[i], last)
            i += 1
