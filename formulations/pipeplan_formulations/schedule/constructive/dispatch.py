"""List scheduling: whichever device can start something first starts what its rule likes best.

::

    device 0   F0 F1 F2 ·· I0 ·
    device 1      F0 F1 I0 ↑        both look at what has arrived, or is known to arrive, and fits; the earlier start is
                           └ next   made final, and the devices that hear of its end look again
"""

from pipeplan_formulations.schedule.constructive.admission import Admission
from pipeplan_formulations.schedule.constructive.numbers import F, I, Numbered, W
from pipeplan_formulations.schedule.constructive.rule import Rule
from pipeplan_formulations.schedule.problem import PipelineSchedule

_NEVER = 1 << 62
_Choice = tuple[int, float, int, int, int]
"""Level, priority, kind, stage, start: the least is best."""


def dispatch(problem: PipelineSchedule, rule: Rule) -> tuple[int, Numbered]:
    """The makespan, and of every device its actions in order; one micro-batch alone must fit.

    It always ends: a forward starts only where the pipeline can drain afterwards (`admission`).
    """
    run = _Run(problem, rule)
    waiting = [run.look(device) for device in range(problem.devices)]
    starts = [choice[4] for choice in waiting]
    while (start := min(starts)) < _NEVER:
        device = starts.index(start)
        for other in run.begin(device, waiting[device]):
            waiting[other] = run.look(other)
            starts[other] = waiting[other][4]
    return run.makespan, run.orders


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
        self.ready = [[_NEVER] * stages for _ in range(3)]  # of the next micro-batch
        self.ready[F][0] = 0
        self.ends = [[[_NEVER] * problem.micro_batches for _ in range(stages)] for _ in range(2)]  # of F and I
        self.free = [0] * problem.devices
        self.last = [I] * problem.devices  # kind of the last F or I
        self.orders: Numbered = [[] for _ in problem.hosted]
        self.makespan = 0

    def look(self, device: int) -> _Choice:
        """What the device starts next, as far as is known."""
        free, rule, started = self.free[device], self.rule, self.started
        (forward, backward, weight), (first_f, first_i, first_w) = self.ready, rule.priorities
        turn = self.last[device] if rule.alternate else None
        found: list[_Choice] = []
        for stage in self.problem.hosted[device]:
            if (ready := backward[stage]) < _NEVER:
                level = 1 if turn == I else 0
                found.append((level, first_i[stage][started[I][stage]], I, stage, ready if ready > free else free))
            if (ready := forward[stage]) < _NEVER and self._admits(device, stage):
                level = 1 if turn == F else 0
                found.append((level, first_f[stage][started[F][stage]], F, stage, ready if ready > free else free))
            if (ready := weight[stage]) < _NEVER:
                level = 1 if rule.alternate else 0
                found.append((level, first_w[stage][started[W][stage]], W, stage, ready if ready > free else free))
        if len(found) < 2:
            return found[0] if found else (0, 0, F, 0, _NEVER)
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

    def begin(self, device: int, choice: _Choice) -> tuple[int, ...]:
        """Start it; the devices that must look again."""
        _, _, kind, stage, start = choice
        problem, started = self.problem, self.started[kind]
        stages = problem.stages
        micro_batch = started[stage]
        end = start + self.durations[kind][stage]
        started[stage] += 1
        self.free[device] = end
        self.orders[device].append((kind * stages + stage) * problem.micro_batches + micro_batch)
        if kind != F:
            self.makespan = max(self.makespan, end + problem.ending[stage])
        if kind == W:
            self.left[device] += problem.freed_by_weight[stage]
            self._weight(stage)
            return (device,)
        self.last[device] = kind
        self.ends[kind][stage][micro_batch] = end
        self._backward(stage)
        if kind == F:
            self.left[device] -= problem.taken[stage]
            self._forward(stage)
            other = stage + 1
            if other == stages:
                return (device,)
            self._forward(other)
        else:
            self.left[device] += problem.freed[stage]
            self._weight(stage)
            other = stage - 1
            if other < 0:
                return (device,)
            self._backward(other)
        return (device,) if problem.device[other] == device else (device, problem.device[other])

    def _forward(self, stage: int) -> None:
        micro_batch = self.started[F][stage]
        if micro_batch == self.problem.micro_batches:
            self.ready[F][stage] = _NEVER
        elif stage:
            end = self.ends[F][stage - 1][micro_batch]
            self.ready[F][stage] = end if end == _NEVER else end + self.problem.lag[stage - 1]

    def _backward(self, stage: int) -> None:
        micro_batch = self.started[I][stage]
        if micro_batch == self.problem.micro_batches:
            self.ready[I][stage] = _NEVER
            return
        ready = self.ends[F][stage][micro_batch]
        if stage + 1 < self.problem.stages:
            end = self.ends[I][stage + 1][micro_batch]
            ready = max(ready, end if end == _NEVER else end + self.problem.lag_back[stage])
        self.ready[I][stage] = ready

    def _weight(self, stage: int) -> None:
        if self.problem.split[stage]:
            micro_batch = self.started[W][stage]
            waits = micro_batch < self.started[I][stage]
            self.ready[W][stage] = self.ends[I][stage][micro_batch] if waits else _NEVER
