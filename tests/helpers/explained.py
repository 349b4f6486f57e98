"""Plans around a pipeline and a schedule, and jobs that are solved quickly."""

from pipeplan.analysis.explain.setting import Setting
from pipeplan.core.job import Job, Recompute
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Schedule
from pipeplan.simulate import simulate


def lean(batch: int, **fields: object) -> Job:
    """Job of ``batch`` samples, each stage on one device, without recomputation, in one order of low memory."""
    given = {"schedules": ("1f1b-sno",), "replicas": (1,), "recompute": Recompute.NONE}
    return Job(batch, **(given | fields))  # type: ignore[arg-type]


def setting_of(schedule: Schedule, pipeline: Pipeline) -> Setting:
    """Setting of a plan whose rank r runs on device r, with one layer per stage and the stage's own memory."""
    timeline = simulate(schedule, pipeline)
    stages = tuple(
        PlanStage(
            (f"l{s}",),
            devices,
            stage.forward,
            stage.backward,
            1,
            MemoryParts(weights=stage.resident, activations=stage.held, workspace=stage.workspace),
        )
        for s, (stage, devices) in enumerate(zip(pipeline.stages, pipeline.placement, strict=True))
    )
    plan = Plan(
        model="made up",
        fingerprint="",
        cluster="made up",
        device_kinds=("unit",) * pipeline.devices,
        micro_batch=1,
        micro_batches=max(schedule.micro_batches, 1),
        optimizer="sgd",
        stages=stages,
        schedule=schedule,
        ranks=tuple(range(pipeline.devices)),
        step_time=timeline.makespan,
        bound=0,
        pipeline=pipeline,
    )
    return Setting(plan, timeline)
