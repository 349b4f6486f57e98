"""Plans around a pipeline and a schedule, and jobs that are answered quickly."""

from pipeplan.analysis.explain.setting import Setting
from pipeplan.core.job import Job, Recompute
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Schedule
from pipeplan.simulate import simulate


def lean(batch: int, **fields: object) -> Job:
    """A step of so many samples, each stage on one device and nothing recomputed, in one order that holds little."""
    given = {"schedules": ("1f1b-sno",), "replicas": (1,), "recompute": Recompute.NONE}
    return Job(batch, **(given | fields))  # type: ignore[arg-type]


def setting_of(schedule: Schedule, pipeline: Pipeline) -> Setting:
    """A plan whose rank r runs on device r; its layers are one a stage, its memory the stage's own."""
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
