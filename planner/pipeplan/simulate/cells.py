"""Which action is the forward, the backward … of each micro-batch on each stage, and the reduction of each replica."""

from itertools import accumulate, pairwise

from pipeplan.errors import PlanError
from pipeplan.names import some
from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.simulate.numbers import NOTHING, SHOWN
from pipeplan_formulations.common.dependencies import Part


class Cells:
    """Numbers of the actions of every (stage, micro-batch, slice), in one flat row: slices fastest, stages slowest.

    Replicas are numbered through, stage by stage.

    Attributes
    ----------
    forward, backward, weight : list of int
        One a cell; ``backward`` is B, or I where ``split`` is true and ``weight`` the W.
    reduce, update, last_backward : list of int
        One a replica, `NOTHING` where it has none.

    Raises
    ------
    PlanError
        If actions are missing or doubled.
    """

    def __init__(self, schedule: Schedule, pipeline: Pipeline, actions: list[Action], homes: list[int]) -> None:
        self.slices = 1 + max((action.slice for action in actions), default=0)
        self.stride = schedule.micro_batches * self.slices
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
        self.tied = pipeline.tied
        self.reduce = [NOTHING] * self.first_replica[-1]
        self.update = [NOTHING] * self.first_replica[-1]
        self.last_backward = [NOTHING] * self.first_replica[-1]
        replica_at = [{device: j for j, device in enumerate(devices)} for devices in pipeline.placement]
        for i, action in enumerate(actions):
            self._enter(i, action, self.first_replica[action.stage] + replica_at[action.stage][homes[i]])
        self._check_complete(actions, pipeline)

    def cell(self, action: Action) -> int:
        """Where the action's (stage, micro-batch, slice) stands in the row."""
        return action.stage * self.stride + action.micro_batch * self.slices + action.slice

    def column(self, kind: Part, stage: int, part: int) -> list[int]:
        """The actions of one kind, stage and slice by micro-batch, `NOTHING` where there is none."""
        row = self.forward if kind == "F" else self.backward if kind == "I" else self.weight
        return row[stage * self.stride + part : (stage + 1) * self.stride : self.slices]

    def collectives(self) -> list[list[int]]:
        """The reductions that run together: those of a stage's replicas, or of all replicas of stages that are tied."""
        rows = [self.reduce[a:b] for a, b in pairwise(self.first_replica)]
        alone = set(range(len(rows))).difference(*self.tied)
        groups = [*((stage,) for stage in sorted(alone)), *self.tied]
        together = [[i for stage in group for i in rows[stage]] for group in groups]
        return [row for row in together if len(row) > 1 and NOTHING not in row]

    def _enter(self, i: int, action: Action, replica: int) -> None:
        kind = action.kind
        if kind is Kind.FORWARD:
            row, place = self.forward, self.cell(action)
        elif kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT:
            row, place = self.backward, self.cell(action)
            self.split[place] = kind is Kind.INPUT_GRADIENT
            self.last_backward[replica] = i
        elif kind is Kind.WEIGHT_GRADIENT:
            row, place = self.weight, self.cell(action)
            self.last_backward[replica] = i
        else:
            row, place = (self.reduce if kind is Kind.REDUCE else self.update), replica
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
            row = self.reduce[self.first_replica[stage] : self.first_replica[stage + 1]]
            if set(row) != {NOTHING} or any(stage in group for group in pipeline.tied):  # a sum needs every replica
                lacking = [device for device, i in zip(devices, row, strict=True) if i == NOTHING]
                faults += [f"{Action(Kind.REDUCE, stage)} on device {device}" for device in lacking]
        if faults:
            raise PlanError(f"the lists are incomplete: missing {some(faults, SHOWN)}")
