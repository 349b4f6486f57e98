"""List scheduling: the device with the earliest possible start runs the operation of its rule's highest priority.

::

    device 0   F0 F1 F2 ·· I0 ·
    device 1      F0 F1 I0 ↑        both choose among operations whose inputs have arrived, or will at a known time, and
                           └ next   that fit; the earlier start is made final, and the affected devices choose again

On a device with two lanes each lane chooses separately. Tensors take their link resources as soon as they are ready, in
the order of the starts of their operations; the resulting lists are then evaluated exactly.

Operations are encoded as integers, since loops visit each of them thousands of times:
number = (kind · stages + stage) · micro_batches + micro_batch, with kind 0, 1, 2 for F, I, W.

Deadlock avoidance: forwards that may start so that the pipeline can always drain (`Admission`)
-----------------------------------------------------------------------------------------------
A stage holds the bytes that a micro-batch takes at the start of its F until its I and W free them. Let ``z`` be the
last stage on a device, in the order of a micro-batch's path, and ``n_s`` the number of F of stage s that have started.
The device is *safe* if the oldest micro-batch that has not passed all its stages still finds room:

    full + Σ_s taken_s · max(0, n_s − n_z − 1) ≤ room        with full = Σ_s taken_s, room = limit − base.

*Sufficient.* Let every device be safe, and run every W that waits. The oldest micro-batch j that has not ended has
n_s = j on the stages that it has yet to pass, and the older ones hold nothing, so its next F finds room.
Afterwards that holds again: if the stage is z, no term grows, and if not, its own term is max(0, j + 1 − j − 1) = 0. So
j passes all stages, returns, and frees all its bytes.

*Necessary.* Micro-batches pass a stage in order, so no I of a later one precedes the last F of j. The later ones keep
their bytes until j has passed z. If it fails there is no room for that.

In-flight counts of the stages (`tuned`)
----------------------------------------
If memory is short these counts matter more than priorities: a stage that runs forwards early delays backwards, and the
full stages before it wait for those.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, listed

Numbered: TypeAlias = list[list[int]]
"""Operations of every device in order, as numbers."""

KINDS: tuple[Kind, ...] = ("F", "I", "W")
F, I, W = range(3)  # noqa: E741


def number(problem: PipelineSchedule, kind: int, stage: int, micro_batch: int) -> int:
    """Number that encodes an operation."""
    return (kind * problem.stages + stage) * problem.micro_batches + micro_batch


def to_orders(problem: PipelineSchedule, numbered: Sequence[Sequence[int]]) -> Orders:
    """Decode numbers to operations."""

    def op(number: int) -> Op:
        rest, micro_batch = divmod(number, problem.micro_batches)
        kind, stage = divmod(rest, problem.stages)
        return Op(KINDS[kind], stage, micro_batch)

    return tuple(tuple(op(number) for number in order) for order in numbered)


def to_numbers(problem: PipelineSchedule, orders: Orders) -> Numbered:
    """Encode operations as numbers."""
    return [[number(problem, KINDS.index(op.kind), op.stage, op.micro_batch) for op in order] for order in orders]


Priorities: TypeAlias = tuple[list[list[float]], list[list[float]], list[list[float]]]
"""Priorities of F, I and W, per stage and micro-batch: the least goes first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Dispatching rule: a device's choice among the operations that it may start.

    Attributes
    ----------
    priorities : Priorities
        The least goes first.
    patience : float
        A device waits for an operation of higher priority that can start within this fraction of the time of the best
        one that could start now: 0 makes non-delay schedules, 1 active ones.
    held : tuple of int, or None
        Most micro-batches in flight per stage (F started, I not ended), each at least 1; None for as many as fit.
    """

    priorities: Priorities
    patience: float = 0.0
    held: tuple[int, ...] | None = None


class Admission:
    """Safety test for the next F of a stage, given the number of F that have started on each stage."""

    def __init__(self, problem: PipelineSchedule) -> None:
        self._device, self._hosted, self._taken = problem.device, problem.hosted, problem.taken
        self._spare = [
            room - sum(problem.taken[s] for s in stages)
            for room, stages in zip(problem.room, problem.hosted, strict=True)
        ]

    def keeps_safe(self, stage: int, started: Sequence[int]) -> bool:
        """True if the device is safe after one more F of the stage, given that it held before."""
        device = self._device[stage]
        hosted = self._hosted[device]
        if stage == hosted[-1]:
            return True
        passed = started[hosted[-1]] + 1
        ahead = sum([self._taken[s] * max(0, started[s] + (s == stage) - passed) for s in hosted])
        return ahead <= self._spare[device]


_Choice = tuple[float, int, int, int]
"""Candidate (priority, kind, stage, start): the least is best."""


def dispatch(problem: PipelineSchedule, rule: Rule) -> tuple[int, Numbered]:
    """Makespan and lists of the schedule by a rule; one micro-batch alone must fit.

    The schedule never deadlocks: a forward starts only if the pipeline can drain afterwards (`Admission`).
    """
    run = _Run(problem, rule)
    waiting = [run.look(lane) for lane in range(len(problem.lanes))]
    starts = [choice[3] for choice in waiting]
    while (start := min(starts)) < UNLIMITED:
        lane = starts.index(start)
        for other in run.begin(lane, waiting[lane]):
            waiting[other] = run.look(other)
            starts[other] = waiting[other][3]
    return (run.makespan, run.orders) if problem.plain else _timed(problem, run)


def _timed(problem: PipelineSchedule, run: "_Run") -> tuple[int, Numbered]:
    """Makespan and lists, evaluated exactly with lanes and link resources."""
    orders = listed(problem, run.begun)[: problem.devices]
    value = evaluate(problem, orders)
    assert value is not None
    return value, to_numbers(problem, orders)


class _Run:
    """Partial schedule, extended operation by operation."""

    def __init__(self, problem: PipelineSchedule, rule: Rule) -> None:
        stages = problem.stages
        self.problem, self.rule = problem, rule
        self.admission = Admission(problem)
        self.left = list(problem.room)
        self.held = rule.held or (problem.micro_batches,) * stages
        self.durations = (problem.forward, problem.backward, problem.weight)
        self.started = [[0] * stages for _ in range(3)]
        self.ready = [[UNLIMITED] * stages for _ in range(3)]  # of the next micro-batch
        self.ready[F][0] = 0
        self.ends = [[[UNLIMITED] * problem.micro_batches for _ in range(stages)] for _ in range(2)]  # of F and I
        self.gone = (
            self.ends if problem.plain else [[list(row) for row in rows] for rows in self.ends]
        )  # tensors of both
        counts = [1 + problem.has_lanes(device) for device in range(problem.devices)]
        self.lanes = [tuple(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]
        self.device = [device for device, own in enumerate(self.lanes) for _ in own]
        self.free = [0] * len(self.device)
        self.late = [(0, 0, 0)] * problem.devices  # start and end of the last I or W, and what it frees then
        self.resource_free = dict.fromkeys(problem.carried, 0)
        self.begun: dict[Op, int] = {}
        self.orders: Numbered = [[] for _ in problem.hosted]
        self.makespan = 0

    def look(self, lane: int) -> _Choice:
        """Operation that the lane starts next, by the arrivals known so far; its start is `UNLIMITED` if none."""
        # found: the next I, F and W of each stage on this lane.
        device, free, rule, started = self.device[lane], self.free[lane], self.rule, self.started
        (forward, backward, weight), (first_f, first_i, first_w) = self.ready, rule.priorities
        forwards, others = lane == self.lanes[device][0], lane == self.lanes[device][-1]
        found: list[_Choice] = []
        for stage in self.problem.hosted[device]:
            if others and (ready := backward[stage]) < UNLIMITED:
                found.append((first_i[stage][started[I][stage]], I, stage, ready if ready > free else free))
            if forwards and (ready := forward[stage]) < UNLIMITED and self._admits(device, stage):
                if not others:
                    ready = max(ready, self._room_from(device, stage))
                found.append((first_f[stage][started[F][stage]], F, stage, ready if ready > free else free))
            if others and (ready := weight[stage]) < UNLIMITED:
                found.append((first_w[stage][started[W][stage]], W, stage, ready if ready > free else free))
        if len(found) < 2:
            return found[0] if found else (0, F, 0, UNLIMITED)
        # The best of the earliest, or a better one that starts within the patience.
        earliest = min([choice[3] for choice in found])
        best = min([choice for choice in found if choice[3] == earliest])
        if rule.patience:
            until = earliest + rule.patience * self.durations[best[1]][best[2]]
            best = min([choice for choice in found if choice[3] == earliest or choice[3] < until])
        return best

    def _admits(self, device: int, stage: int) -> bool:
        """True if the next forward of the stage fits and leaves the device safe."""
        if self.problem.taken[stage] > self.left[device]:
            return False
        started = self.started[F]
        if started[stage] - self.started[I][stage] >= self.held[stage]:
            return False
        return self.admission.keeps_safe(stage, started)

    def _room_from(self, device: int, stage: int) -> int:
        """Earliest time with memory for an admitted forward: bytes of the last I or W are freed at its end."""
        start, end, freed = self.late[device]
        return end if self.problem.taken[stage] > self.left[device] - freed else start

    def begin(self, lane: int, choice: _Choice) -> tuple[int, ...]:
        """Start the chosen operation; return the lanes that must choose again."""
        _, kind, stage, start = choice
        problem, started, device = self.problem, self.started[kind], self.device[lane]
        stages = problem.stages
        micro_batch = started[stage]
        end = start + self.durations[kind][stage]
        started[stage] += 1
        self.free[lane] = end
        self.orders[device].append((kind * stages + stage) * problem.micro_batches + micro_batch)
        if not problem.plain:
            self._note(lane, Op(KINDS[kind], stage, micro_batch), start)
        if kind != F:
            self.makespan = max(self.makespan, end + problem.ending[stage])
        # Update memory and the arrival times of the operations that depend on this one.
        if kind == W:
            self.left[device] += problem.freed_by_weight[stage]
            self._weight(stage)
            return self.lanes[device]
        self.ends[kind][stage][micro_batch] = end
        self._backward(stage)
        if kind == F:
            self.left[device] -= problem.taken[stage]
            self._forward(stage)
            other = stage + 1
            if other == stages:
                return self.lanes[device]
            self._forward(other)
        else:
            self.left[device] += problem.freed[stage]
            self._weight(stage)
            other = stage - 1
            if other < 0:
                return self.lanes[device]
            self._backward(other)
        same = problem.device[other] == device
        return self.lanes[device] if same else (*self.lanes[device], *self.lanes[problem.device[other]])

    def _note(self, lane: int, op: Op, start: int) -> None:
        """Record start, freed bytes and transfer of an operation, for problems with two lanes or link resources."""
        problem, (kind, s, i), end = self.problem, op, start + self.problem.duration(op)
        self.begun[op] = start
        if kind == "W":
            self.late[self.device[lane]] = start, end, problem.freed_by_weight[s]
            return
        if kind == "I":
            self.late[self.device[lane]] = start, end, problem.freed[s]
        row = problem.sent.get((kind, s))
        if row is not None:
            resources = problem.resources[s] if kind == "F" else problem.resources_back[s - 1]
            begin = max(start + problem.ready[row], *(self.resource_free[resource] for resource in resources))
            self.resource_free.update(dict.fromkeys(resources, begin + problem.time[row[0]][s]))
            end = max(end, begin + problem.time[row[0]][s])
            if problem.overlap == "none":
                self.free[lane] = end
        self.gone[KINDS.index(kind)][s][i] = end

    def _forward(self, stage: int) -> None:
        micro_batch = self.started[F][stage]
        if micro_batch == self.problem.micro_batches:
            self.ready[F][stage] = UNLIMITED
        elif stage:
            end = self.gone[F][stage - 1][micro_batch]
            self.ready[F][stage] = end if end == UNLIMITED else end + self.problem.lag[stage - 1]

    def _backward(self, stage: int) -> None:
        micro_batch = self.started[I][stage]
        if micro_batch == self.problem.micro_batches:
            self.ready[I][stage] = UNLIMITED
            return
        ready = self.ends[F][stage][micro_batch]
        if stage + 1 < self.problem.stages:
            end = self.gone[I][stage + 1][micro_batch]
            ready = max(ready, end if end == UNLIMITED else end + self.problem.lag_back[stage])
        self.ready[I][stage] = ready

    def _weight(self, stage: int) -> None:
        if self.problem.split[stage]:
            micro_batch = self.started[W][stage]
            waits = micro_batch < self.started[I][stage]
            self.ready[W][stage] = self.ends[I][stage][micro_batch] if waits else UNLIMITED


def tuned(problem: PipelineSchedule, rule: Rule, until: float) -> tuple[int, Numbered]:
    """Best schedule of hill climbing over ``rule.held``, one more or less on one stage per step, until time ``until``.

    Steps to equal values are taken, but never twice to the same counts; the walk ends if no step is left.
    """
    fits = [_alone(problem, stage) for stage in range(problem.stages)]
    held = rule.held or tuple(fits)
    most, best = dispatch(problem, replace(rule, held=held))
    seen = {held}
    stage = waited = 0
    while waited < problem.stages and time.monotonic() < until:
        waited += 1
        for count in (held[stage] - 1, held[stage] + 1):
            other = (*held[:stage], count, *held[stage + 1 :])
            if not 1 <= count <= fits[stage] or other in seen:
                continue
            seen.add(other)
            value, orders = dispatch(problem, replace(rule, held=other))
            if value <= most:
                waited = 0 if value < most else waited
                most, best, held = value, orders, other
                break
        stage = (stage + 1) % problem.stages
    return most, best


def _alone(problem: PipelineSchedule, stage: int) -> int:
    """Largest number of micro-batches that fit on the stage while each other stage of its device holds one."""
    device, taken = problem.device[stage], problem.taken[stage]
    left = problem.room[device] - sum(problem.taken[s] for s in problem.hosted[device])
    return min(problem.micro_batches, 1 + left // taken) if taken else problem.micro_batches
