"""The best schedule so far: what fits, by the validator's count, and is fastest, by the simulator."""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate.memory import peak_of_list
from pipeplan.search.scheduling.instance import may_have_lanes
from pipeplan.search.scheduling.lists import FAMILY
from pipeplan.simulate import makespan


class Evaluator:
    """Keeps the best of what it is offered.

    Attributes
    ----------
    best : Schedule or None
    value : int or None
        Its simulated nanoseconds.
    kept : list of Schedule
        All that fit, each once, those that it was offered first.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._values: dict[object, int | None] = {}  # of all that it was offered
        self.kept: list[Schedule] = []
        self.best: Schedule | None = None
        self.value: int | None = None

    def offer(self, schedule: Schedule) -> int | None:
        """Its time; None if it does not fit or is not `comparable`, and then it is ignored.

        Raises
        ------
        PlanError
            If it is no schedule of the pipeline.
        """
        same = schedule.orders, schedule.two_lanes
        if same not in self._values:
            self._values[same] = self._evaluated(schedule)
        return self._values[same]

    def _evaluated(self, schedule: Schedule) -> int | None:
        if not self.fits(schedule) or not self.comparable(schedule):
            return None
        value = makespan(schedule, self._pipeline)
        self.kept.append(schedule)
        if self.value is None or value < self.value:
            self.best, self.value = schedule, value
        return value

    def fits(self, schedule: Schedule) -> bool:
        """Whether every device has the memory."""
        pipeline = self._pipeline
        return all(
            peak_of_list(order, device, pipeline, schedule.two_lanes) <= pipeline.limits[device]
            for device, order in enumerate(schedule.orders)
        )

    def comparable(self, schedule: Schedule) -> bool:
        """Whether bounds over all orders hold for it too.

        Where devices have one lane, two lanes of one stage with joined backwards are never faster than the one that
        runs everything in the order of its start: at that rate, F and B in F + B, each ends no later on the one lane
        than on its own. Not so where a device must wait while it sends, where one lane computes while the other sends.
        """
        if not schedule.two_lanes or may_have_lanes(self._pipeline):
            return True
        joined = all(action.kind not in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT) for action in schedule.actions())
        alone = all(len(stages) <= 1 for stages in self._pipeline.stages_on)
        return joined and alone and self._pipeline.overlap is not Overlap.NONE

    def polish(self) -> None:
        """Small changes to the best one that lists from orders may want."""
        for change in (_updated_early, _rejoined):
            if self.best is not None:
                for trial in change(self.best, self._pipeline):
                    self.offer(trial)


def _updated_early(schedule: Schedule, pipeline: Pipeline) -> Iterator[Schedule]:
    """Each stage updated at once after its last backward, where other stages of its device go on.

    Reductions stay where they are: they are collectives.
    """
    if all(len(stages) <= 1 for stages in pipeline.stages_on):
        return
    orders = []
    for order in schedule.orders:
        last = {action.stage: i for i, action in enumerate(order) if action.kind is not Kind.UPDATE}
        found: list[Action] = []
        for i, action in enumerate(order):
            if action.kind is not Kind.UPDATE:
                found.append(action)
                if last[action.stage] == i and Action(Kind.UPDATE, action.stage) in order:
                    found.append(Action(Kind.UPDATE, action.stage))
        orders.append(tuple(found))
    yield replace(schedule, family=FAMILY, orders=tuple(orders))


def _rejoined(schedule: Schedule, pipeline: Pipeline) -> Iterator[Schedule]:
    """I and W of a micro-batch in a row as one B, where that is faster by itself: of all stages, and of each one."""
    faster = {
        s
        for s, stage in enumerate(pipeline.stages)
        if stage.total(Kind.BACKWARD) < stage.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    }
    for stages in (faster, *({s} for s in sorted(faster))):
        yield replace(schedule, family=FAMILY, orders=tuple(_joined(order, stages) for order in schedule.orders))


def _joined(order: tuple[Action, ...], stages: set[int]) -> tuple[Action, ...]:
    found: list[Action] = []
    for action in order:
        before = action._replace(kind=Kind.INPUT_GRADIENT)
        if action.kind is Kind.WEIGHT_GRADIENT and action.stage in stages and found[-1:] == [before]:
            found[-1] = action._replace(kind=Kind.BACKWARD)
        else:
            found.append(action)
    return tuple(found)
