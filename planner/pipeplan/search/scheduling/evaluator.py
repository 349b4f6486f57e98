"""`Evaluator`: the best schedule so far; the validator counts its memory, the simulator its step time."""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate.memory import peak_of_list
from pipeplan.schedules.family import FOUND
from pipeplan.search.scheduling.instance import may_have_lanes
from pipeplan.simulate import makespan


class Evaluator:
    """Incumbent of a search for schedules.

    Attributes
    ----------
    best : Schedule or None
        The fastest schedule so far that fits.
    value : int or None
        Simulated step time of `best` in nanoseconds.
    kept : list of Schedule
        All schedules that fit, each once, in the order of submission.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._values: dict[object, int | None] = {}  # of every schedule submitted
        self.kept: list[Schedule] = []
        self.best: Schedule | None = None
        self.value: int | None = None

    def submit(self, schedule: Schedule) -> int | None:
        """Return a schedule's step time in nanoseconds; None if it does not fit or is not `comparable`.

        A schedule without a time is ignored.

        Raises
        ------
        PlanError
            If it is no schedule of the pipeline.
        """
        same = schedule.orders, schedule.two_lanes
        if same not in self._values:
            self._values[same] = self._evaluate(schedule)
        return self._values[same]

    def _evaluate(self, schedule: Schedule) -> int | None:
        if not self.fits(schedule) or not self.comparable(schedule):
            return None
        value = makespan(schedule, self._pipeline)
        self.kept.append(schedule)
        if self.value is None or value < self.value:
            self.best, self.value = schedule, value
        return value

    def fits(self, schedule: Schedule) -> bool:
        """Return True if the schedule keeps every device's memory limit."""
        pipeline = self._pipeline
        return all(
            peak_of_list(order, device, pipeline, schedule.two_lanes) <= pipeline.limits[device]
            for device, order in enumerate(schedule.orders)
        )

    def comparable(self, schedule: Schedule) -> bool:
        """Return True if bounds over all orders hold for the schedule too.

        Devices may have one lane while the schedule has two. With one stage per device and joined backwards, one lane
        that runs all actions by their start times is then never slower. On two lanes F and B take F + B each, so each
        action ends no later on the one lane. This fails where a device waits while it sends: there one of two lanes
        computes while the other sends.
        """
        if not schedule.two_lanes or may_have_lanes(self._pipeline):
            return True
        joined = all(action.kind not in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT) for action in schedule.actions())
        alone = all(len(stages) <= 1 for stages in self._pipeline.stages_on)
        return joined and alone and self._pipeline.overlap is not Overlap.NONE

    def polish(self) -> None:
        """Submit small changes of the best schedule: earlier updates, and joined backwards."""
        for change in (_updated_early, _rejoined):
            if self.best is not None:
                for trial in change(self.best, self._pipeline):
                    self.submit(trial)


def _updated_early(schedule: Schedule, pipeline: Pipeline) -> Iterator[Schedule]:
    """Yield the schedule with each stage updated at once after its last backward.

    That helps where other stages of the same device still run. Reductions stay where they are: they are collectives.
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
    yield replace(schedule, family=FOUND, orders=tuple(orders))


def _rejoined(schedule: Schedule, pipeline: Pipeline) -> Iterator[Schedule]:
    """Yield schedules with adjacent I and W of a micro-batch joined to one B, on stages whose B is faster than I + W.

    First on all such stages together, then on each of them alone.
    """
    faster = {
        s
        for s, stage in enumerate(pipeline.stages)
        if stage.total(Kind.BACKWARD) < stage.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    }
    for stages in (faster, *({s} for s in sorted(faster))):
        yield replace(schedule, family=FOUND, orders=tuple(_joined(order, stages) for order in schedule.orders))


def _joined(order: tuple[Action, ...], stages: set[int]) -> tuple[Action, ...]:
    """One device's list with each W of these stages that directly follows its I joined with it."""
    found: list[Action] = []
    for action in order:
        before = action._replace(kind=Kind.INPUT_GRADIENT)
        if action.kind is Kind.WEIGHT_GRADIENT and action.stage in stages and found[-1:] == [before]:
            found[-1] = action._replace(kind=Kind.BACKWARD)
        else:
            found.append(action)
    return tuple(found)
