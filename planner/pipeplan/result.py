"""The answer in full: the plan, what was proved, what was searched, and the balancers beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeplan.job import Job
from pipeplan.plan import Plan, PlanStage
from pipeplan.search.baselines import Baseline, ranked
from pipeplan.timeline import Timeline
from pipeplan.units import format_bytes, format_time
from pipeplan_formulations.report import Status, Stop


@dataclass(frozen=True, slots=True)
class Searched:
    """The space over which the bound holds, and what lies outside it."""

    micro_batch_sizes: tuple[int, ...]
    schedules: tuple[str, ...]
    shapes: int
    opened: int
    recompute: str
    order: str
    partitions: str = "contiguous layers in the listed order, every layer once"
    replicas: str = "devices of one kind and one kind of node; packed in the cluster's order, or equal tiles of nodes"
    not_searched: tuple[str, ...] = (
        "replicas of unlike kinds in one stage",
        "other choices among like devices of several nodes",
        "schedules outside the listed families",
    )


@dataclass(frozen=True)
class Result:
    """What `pipeplan.solve` returns. ``value`` and ``bound`` are nanoseconds.

    Raises
    ------
    ValueError
        If the bound exceeds the value, or a balancer's plan beats the answer.
    """

    plan: Plan
    timeline: Timeline
    job: Job
    status: Status
    stop: Stop
    value: int
    bound: int
    wall: float
    backend: str
    searched: Searched
    baselines: Mapping[str, Baseline]
    runners_up: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.bound > self.value:
            raise ValueError(f"bound {self.bound} ns lies above the value {self.value} ns")
        for row in self.baselines.values():
            if row.value is not None and row.value < self.value:
                raise ValueError(f"balancer {row.name} beats the answer: {row.value} ns against {self.value} ns")

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return (self.value - self.bound) / self.value if self.value else 0.0

    def __str__(self) -> str:
        plan = self.plan
        meaning = "step time" if self.job.objective == "step" else "largest stage load"
        lines = [
            f"{plan.model} on {plan.cluster}: {len(plan.stages)} stages, {plan.micro_batches} micro-batches of "
            f"{plan.micro_batch}, schedule {plan.schedule.family}",
            f"{meaning} {format_time(self.value)}, proven bound {format_time(self.bound)}, gap {self.gap:.2%} "
            f"({self.status}, stopped by {self.stop} after {self.wall:.1f} s with {self.backend})",
        ]
        lines += [f"  stage {number}: {_stage_line(stage, plan)}" for number, stage in enumerate(plan.stages)]
        lines.append("balancers, same simulator, best micro-batch and schedule for each:")
        lines += [f"  {_baseline_line(row, self)}" for row in ranked(self.baselines.values())]
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """The object that ``pipeplan solve --json`` prints. Times are seconds."""
        searched = self.searched
        return {
            "status": self.status.value,
            "stop": self.stop.value,
            "step_time_s": self.value / 1e9,
            "bound_s": self.bound / 1e9,
            "gap": self.gap,
            "wall_s": self.wall,
            "backend": self.backend,
            "micro_batch": self.plan.micro_batch,
            "micro_batches": self.plan.micro_batches,
            "schedule": self.plan.schedule.family,
            "stages": [_stage_json(stage) for stage in self.plan.stages],
            "balancers": {name: _baseline_json(row) for name, row in self.baselines.items()},
            "searched": {
                "objective": self.job.objective.value,
                "micro_batch_sizes": list(searched.micro_batch_sizes),
                "schedules": list(searched.schedules),
                "partitions": searched.partitions,
                "replicas": searched.replicas,
                "recompute": searched.recompute,
                "device_order": searched.order,
                "shapes": searched.shapes,
                "opened": searched.opened,
                "not_searched": list(searched.not_searched),
            },
        }


def _stage_line(stage: PlanStage, plan: Plan) -> str:
    parts = {name: f"{share:.1%} of {name}" for name, share in stage.shares}
    first, last = (parts.get(name, name) for name in (stage.layers[0], stage.layers[-1]))
    span = first if len(stage.layers) == 1 else f"{first} … {last} ({len(stage.layers)} layers)"
    kinds = _devices(stage, plan)
    again = f", {len(stage.recompute)} of {len(stage.layers)} layers recomputed" if stage.recompute else ""
    return (
        f"{kinds}: {span}; forward {format_time(stage.forward)}, backward {format_time(stage.backward)}, "
        f"memory {format_bytes(stage.memory.total)} ({stage.in_flight} in flight{again})"
    )


def _devices(stage: PlanStage, plan: Plan, most: int = 8) -> str:
    """``d0, d1 v100``: replicas are of one kind."""
    shown = ", ".join(f"d{device}" for device in stage.devices[:most])
    more = f" … ({stage.replicas} devices)" if stage.replicas > most else ""
    return f"{shown}{more} {plan.device_kinds[stage.devices[0]]}"


def _baseline_line(row: Baseline, result: Result) -> str:
    if row.value is None:
        return f"{row.name:20} no plan: {row.why}"
    over = row.value / result.bound - 1 if result.bound else 0.0
    return f"{row.name:20} {format_time(row.value):>10}  {over:+.1%} over the bound  ({row.label})"


def _stage_json(stage: PlanStage) -> dict[str, object]:
    memory = stage.memory
    return {
        "layers": list(stage.layers),
        "devices": list(stage.devices),
        "replicas": stage.replicas,
        "recompute": list(stage.recompute),
        "forward_s": stage.forward / 1e9,
        "backward_s": stage.backward / 1e9,
        "memory_bytes": {
            "total": memory.total,
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "activations": memory.activations,
            "workspace": memory.workspace,
            "runtime": memory.runtime,
        },
    } | ({"shares": dict(stage.shares)} if stage.shares else {})


def _baseline_json(row: Baseline) -> dict[str, object]:
    if row.value is None:
        return {"step_time_s": None, "why": row.why}
    return {"step_time_s": row.value / 1e9, "plan": row.label}
