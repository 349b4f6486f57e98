"""List scheduling: whichever device can start something first starts what its rule likes best.

::

    device 0   F0 F1 F2 ·· I0 ·
    device 1      F0 F1 I0 ↑        both look at what has arrived, or is known to arrive, and fits; the earlier start is
                           └ next   made final, and the devices that hear of its end look again

Each lane of a device with two looks by itself. Tensors take their wires as soon as they are on their way, in the order
in which what makes them starts; the lists that come of it are then timed as they are.
"""

from itertools import accumulate

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.schedule.constructive.admission import Admission
from pipeplan_formulations.schedule.constructive.numbers import KINDS, F, I, Numbered, W, to_numbers
from pipeplan_formulations.schedule.constructive.rule import Rule
from pipeplan_formulations.schedule.evaluate import evaluate, listed
from pipeplan_formulations.schedule.problem import Op, PipelineSchedule

_Choice = tuple[int, float, int, int, int]
"""Level, priority, kind, stage, start: the least is best."""


def dispatch(problem: PipelineSchedule, rule: Rule) -> tuple[int, Numbered]:
    """The makespan, and of every device its actions in order; one micro-batch alone must fit.

    It always ends: a forward starts only where the pipeline can drain afterwards (`admission`).
    """
    run = _Run(problem, rule)
    waiting = [run.look(lane) for lane in range(len(problem.lanes))]
    starts = [choice[4] for choice in waiting]
    while (start := min(starts)) < UNLIMITED:
        lane = starts.index(start)
        for other in run.begin(lane, waiting[lane]):
            waiting[other] = run.look(other)
            starts[other] = waiting[other][4]
    return (run.makespan, run.orders) if problem.plain else _timed(problem, run)


def _timed(problem: PipelineSchedule, run: "_Run") -> tuple[int, Numbered]:
    """The lists as `evaluate` has them."""
    orders = listed(problem, run.begun)[: problem.devices]
    value = evaluate(problem, orders)
    assert value is not None
    return value, to_numbers(problem, orders)


class _Run:
    """A schedule in the making."""

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
        self.last = [I] * len(self.device)  # kind of the last F or I
        self.late = [(0, 0, 0)] * problem.devices  # start and end of the last I or W, and what it frees then
        self.wires = dict.fromkeys(problem.carried, 0)
        self.begun: dict[Op, int] = {}
        self.orders: Numbered = [[] for _ in problem.hosted]
        self.makespan = 0

    def look(self, lane: int) -> _Choice:
        """What the lane starts next, as far as is known."""
        device, free, rule, started = self.device[lane], self.free[lane], self.rule, self.started
        (forward, backward, weight), (first_f, first_i, first_w) = self.ready, rule.priorities
        turn = self.last[lane] if rule.alternate else None
        forwards, others = lane == self.lanes[device][0], lane == self.lanes[device][-1]
        found: list[_Choice] = []
        for stage in self.problem.hosted[device]:
            if others and (ready := backward[stage]) < UNLIMITED:
                level = 1 if turn == I else 0
                found.append((level, first_i[stage][started[I][stage]], I, stage, ready if ready > free else free))
            if forwards and (ready := forward[stage]) < UNLIMITED and self._admits(device, stage):
                level = 1 if turn == F else 0
                if not others:
                    ready = max(ready, self._room_from(device, stage))
                found.append((level, first_f[stage][started[F][stage]], F, stage, ready if ready > free else free))
            if others and (ready := weight[stage]) < UNLIMITED:
                level = 1 if rule.alternate else 0
                found.append((level, first_w[stage][started[W][stage]], W, stage, ready if ready > free else free))
        if len(found) < 2:
            return found[0] if found else (0, 0, F, 0, UNLIMITED)
        earliest = min([choice[4] for choice in found])
        best = min([choice for choice in found if choice[4] == earliest])
        if rule.patience:
            until = earliest + rule.patience * self.durations[best[2]][best[3]]
            best = min([choice for choice in found if choice[4] == earliest or choice[4] < until])
        return best

    def _admits(self, device: int, stage: int) -> bool:
        """Whether the next forward of the stage may start, and leaves the device safe."""
        if self.problem.taken[stage] > self.left[device]:
            return False
        started = self.started[F]
        if started[stage] - self.started[I][stage] >= self.held[stage]:
            return False
        return self.admission.keeps_safe(stage, started)

    def _room_from(self, device: int, stage: int) -> int:
        """When a forward that is admitted has its memory: what the last I or W frees is there when that ends."""
        start, end, freed = self.late[device]
        return end if self.problem.taken[stage] > self.left[device] - freed else start

    def begin(self, lane: int, choice: _Choice) -> tuple[int, ...]:
        """Start it; the lanes that must look again."""
        _, _, kind, stage, start = choice
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
        if kind == W:
            self.left[device] += problem.freed_by_weight[stage]
            self._weight(stage)
            return self.lanes[device]
        self.last[lane] = kind
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
        """Where there are lanes or wires: its start, what it frees at its end, and how its tensor leaves."""
        problem, (kind, s, i), end = self.problem, op, start + self.problem.duration(op)
        self.begun[op] = start
        if kind == "W":
            self.late[self.device[lane]] = start, end, problem.freed_by_weight[s]
            return
        if kind == "I":
            self.late[self.device[lane]] = start, end, problem.freed[s]
        row = problem.sent.get((kind, s))
        if row is not None:
            wires = problem.wires[s] if kind == "F" else problem.wires_back[s - 1]
            begin = max(start + problem.ready[row], *(self.wires[wire] for wire in wires))
            self.wires.update(dict.fromkeys(wires, begin + problem.time[row[0]][s]))
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
