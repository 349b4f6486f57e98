"""The engine's own work in a measured step, and what counts as noise."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, tiny_chain
from pipeplan.core.timeline import Timeline
from pipeplan.simulate import simulate
from pipeplan.solve import solve
from pipeplan_executor.calibrate.engine import engine_work
from pipeplan_executor.train.report import RunReport

PLAN = solve(tiny_chain(), equal_devices(2), 4, depths=(2,), replicas=(1,), schedules=("gpipe",)).plan


def report_in(*factors: int, late: int = 0) -> RunReport:
    """Steps whose actions take so many times what is planned; each step ends ``late`` nanoseconds behind them."""
    timelines = []
    for factor in factors:
        stages = tuple(
            replace(stage, forward=stage.forward * factor, backward=stage.backward * factor)  # type: ignore[operator]
            for stage in PLAN.pipeline.stages
        )
        timelines.append(simulate(PLAN.schedule, replace(PLAN.pipeline, stages=stages)))
    times = tuple(timeline.makespan + late for timeline in timelines)
    return RunReport((0.0,) * len(times), times, (), tuple(Timeline(each.spans, (), (), ()) for each in timelines))


@pytest.mark.parametrize("late", [0, 7, 10_000])
def test_what_actions_do_not_explain_is_the_engines(late: int) -> None:
    """Where actions follow the simulated schedule, all that the step takes more is the engine's own work."""
    work = engine_work(PLAN, report_in(3, late=late))
    assert work is not None
    assert (work.time, work.step - work.actions) == (late, late)
    assert ("dominates" in str(work)) == (late == 10_000)


def test_no_step_tells_nothing() -> None:
    """A run that only verified has no step whose parts could be told apart."""
    assert engine_work(PLAN, RunReport((), (), (), ())) is None


def test_a_prediction_within_the_measured_steps_is_noise() -> None:
    """Only a prediction between the least and the largest measured step is said to be off by noise."""
    report = RunReport((0.0,) * 3, (90, 100, 120), (), ())
    assert report.spread == "90 ns to 120 ns"
    assert report.off(95) == "+5.3% (noise)"
    assert report.off(80) == "+25.0%"
