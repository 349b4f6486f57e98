"""What every action of a schedule waits for, as signals (see `pipeplan.simulate.numbers`)."""

from itertools import pairwise

from pipeplan.errors import PlanError
from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.simulate.numbers import NOTHING, SHOWN


def find_needs(schedule: Schedule, pipeline: Pipeline, actions: list[Action]) -> list[tuple[int, ...]]:
    """The signals that each action waits for, besides the end of what stands ahead of it in its lane.

    Raises
    ------
    PlanError
        If actions are missing or doubled.
    """
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
