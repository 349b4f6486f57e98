"""The engine's own work in a measured step: what its actions do not explain."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan.core.units import format_time
from pipeplan.simulate import simulate
from pipeplan_executor.calibrate.costs import FIELDS
from pipeplan_executor.calibrate.observed import observed
from pipeplan_executor.train.report import RunReport

NOTABLE, DOMINANT = 0.1, 0.5
"""Shares of the step from which the engine's own work is reported, and from which it dominates."""


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Nanoseconds of a measured step, and of the same step if nothing but its actions took time.

    ``actions`` is simulated: the measured times of forwards, backwards, sums and updates in the plan's order, with the
    planned transfers. The rest is dispatch, copies, sends, and waiting for processes whose times vary.
    """

    step: int
    actions: int

    @property
    def time(self) -> int:
        """Nanoseconds of the engine's own work."""
        return max(self.step - self.actions, 0)

    @property
    def share(self) -> float:
        """Its share of the step."""
        return self.time / self.step if self.step else 0.0

    def __str__(self) -> str:
        what = "dominates the step" if self.share >= DOMINANT else "is part of the step"
        end = ": so short a step tells little of the plan; more samples in a micro-batch take more of it" * (
            self.share >= DOMINANT
        )
        return (
            f"the engine's own work {what}: {format_time(self.time)} of {format_time(self.step)} ({self.share:.0%}) "
            f"pass between actions, which take {format_time(self.actions)} by themselves{end}"
        )


def engine_work(plan: Plan, report: RunReport) -> EngineWork | None:
    """Return the engine's own work in the steps of a run on CPUs; None if no step was timed, or none by itself.

    On GPUs actions are recorded as they are launched, not as they run.
    """
    if not report.step_times or plan.staleness or plan.priority:
        return None
    measured = observed(report.timelines, report.step_times, tied=plan.pipeline.tied, gathers=plan.zero > 0).actions
    stages = tuple(
        replace(stage, buckets=(), gather_buckets=(), **_times(s, measured))
        for s, stage in enumerate(plan.pipeline.stages)
    )
    actions = simulate(plan.schedule, replace(plan.pipeline, stages=stages)).makespan
    return EngineWork(report.step_time, actions)


def _times(stage: int, measured: Mapping[tuple[int, Kind], int]) -> dict[str, int]:
    return {FIELDS[kind]: took for (s, kind), took in measured.items() if s == stage and kind in FIELDS}
