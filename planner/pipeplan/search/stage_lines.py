"""`stage_lines`: the stages of a plan in words, like ones together where there are many."""

import re
from itertools import groupby

from pipeplan.core.plan import Plan, PlanStage
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import counted, device_names
from pipeplan.simulate import memory_of_ranks

SHOWN = 8
"""Most stages with a line each; of more, consecutive stages that are alike share a line."""


def stage_lines(plan: Plan) -> list[str]:
    """Return a line for each stage or run of like ones, then what devices need for several, and shared weights."""
    return [*_stages(plan), *_of_all_stages(plan), *_shared_weights(plan)]


def _stages(plan: Plan) -> list[str]:
    if len(plan.stages) <= SHOWN:
        return [f"  stage {number}: {_stage(stage, plan)}" for number, stage in enumerate(plan.stages)]
    lines = []
    for _, run in groupby(enumerate(plan.stages), key=lambda entry: _stage_key(entry[1], plan)):
        numbers, stages = zip(*run, strict=True)
        if len(stages) == 1:
            lines.append(f"  stage {numbers[0]}: {_stage(stages[0], plan)}")
        else:
            lines.append(f"  stages {numbers[0]} to {numbers[-1]}: {_alike(stages, plan)}")
    return lines


def _of_all_stages(plan: Plan) -> list[str]:
    """What a device holds at most, where it has several stages."""
    most = max(map(len, plan.pipeline.stages_on))
    if most == 1:
        return []
    peaks = sorted(memory_of_ranks(plan))
    held = format_bytes(peaks[0]) + (f" to {format_bytes(peaks[-1])}" if peaks[-1] > peaks[0] else "")
    each = "a member of each team" if plan.letter == "t" else "each device"
    return [f"  {each} needs {held} for its {most} stages together"]


def _shared_weights(plan: Plan) -> list[str]:
    return [
        f"  stages {', '.join(map(str, group[:-1]))} and {group[-1]} share weights: each holds a copy, and its "
        "gradients are summed before the update"
        for group in plan.pipeline.tied
    ]


def _stage_key(stage: PlanStage, plan: Plan) -> tuple[object, ...]:
    layers = tuple(re.sub(r"[0-9]+", "", name) for name in stage.layers)  # block.3 and block.7 are alike
    return layers, stage.replicas, plan.device_kinds[stage.devices[0]], stage.team, len(stage.recompute)


def _stage(stage: PlanStage, plan: Plan) -> str:
    parts = {name: f"{share:.1%} of {name}" for name, share in stage.shares}
    first, last = (parts.get(name, name) for name in (stage.layers[0], stage.layers[-1]))
    span = first if len(stage.layers) == 1 else f"{first} … {last} ({len(stage.layers)} layers)"
    again = f", {len(stage.recompute)} of {len(stage.layers)} layers recomputed" if stage.recompute else ""
    return (
        f"{_devices(stage, plan)}: {span}; forward {format_time(stage.forward)}, backward "
        f"{format_time(stage.backward)}, memory {format_bytes(stage.memory.total)} ({stage.in_flight} in flight{again})"
    )


def _alike(stages: tuple[PlanStage, ...], plan: Plan) -> str:
    first, last = stages[0], stages[-1]
    again = f", {len(first.recompute)} recomputed" if first.recompute else ""
    memory = sorted(stage.memory.total for stage in stages)
    kind, what = plan.device_kinds[first.devices[0]], plan.letter
    devices = sorted(device for stage in stages for device in stage.devices)
    per_stage = (
        counted(first.replicas, "device") if first.team == 1 else f"{counted(first.replicas, 'team')} of {first.team}"
    )
    return (
        f"{what}{devices[0]} … {what}{devices[-1]} {kind}, {per_stage} per stage: "
        f"{counted(len(first.layers), 'layer')} each{again} ({first.layers[0]} … {last.layers[-1]}); forward and "
        f"backward up to {format_time(max(stage.forward + stage.backward for stage in stages))}, memory "
        f"{format_bytes(memory[0])} to {format_bytes(memory[-1])} ({first.in_flight} to {last.in_flight} in flight)"
    )


def _devices(stage: PlanStage, plan: Plan) -> str:
    """``d0, d1 v100``, or ``t0, t1 8 x v100`` for teams: replicas are of one kind."""
    return f"{device_names(stage.devices, plan.letter)} {plan.kind_of(stage)}"
