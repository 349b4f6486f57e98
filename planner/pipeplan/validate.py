"""An independent check of schedules and plans. It asks no solver and shares nothing with the simulator.

A schedule is sound if every action is there once, on one device, and all lists together can be played to the end:

::

    device 0   0F0  0F1 │ 0B0            played: each device's list up to the first action
    device 1   1F0 │ 1B0                 that still waits for something
"""

from collections import Counter
from collections.abc import Iterator

from pipeplan.cluster import Cluster
from pipeplan.errors import PlanError
from pipeplan.model import Model
from pipeplan.plan import Plan
from pipeplan.schedule import Action, Kind, Schedule

SHOWN = 8
"""How many violations an error spells out."""


def validate_schedule(schedule: Schedule, stages: int, micro_batches: int) -> None:
    """Check that a schedule runs every micro-batch through every stage, forward and back, and ends.

    Raises
    ------
    PlanError
        Naming what is wrong.
    """
    _refuse("the schedule", [*_inventory(schedule, stages, micro_batches)])
    _refuse("the schedule", [*_stuck(schedule, stages)])


def validate_plan(plan: Plan, model: Model, cluster: Cluster) -> None:
    """Check that a plan belongs to its model and cluster, keeps every limit, and claims nothing impossible.

    Raises
    ------
    PlanError
        Naming what is wrong.
    """
    _refuse(f"the plan for {plan.model}", [*_belongs(plan, model, cluster), *_limits(plan, cluster)])
    if len(plan.schedule.orders) != len(plan.ranks):
        raise PlanError(f"the plan has {len(plan.schedule.orders)} lists of actions for {len(plan.ranks)} ranks")
    validate_schedule(plan.schedule, len(plan.stages), plan.micro_batches)


def _refuse(what: str, faults: list[str]) -> None:
    if faults:
        more = f"\n  … and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise PlanError(f"{what} breaks the rules:\n  " + "\n  ".join(faults[:SHOWN]) + more)


def _inventory(schedule: Schedule, stages: int, micro_batches: int) -> Iterator[str]:
    counts = Counter(schedule.actions())
    home: dict[int, int] = {}
    for device, order in enumerate(schedule.orders):
        for action in order:
            if home.setdefault(action.stage, device) != device:
                yield f"{action} is on device {device}, but stage {action.stage} is on device {home[action.stage]}"
    for action, count in counts.items():
        if count > 1:
            yield f"{action} appears {count} times"
        if not (0 <= action.stage < stages and 0 <= action.micro_batch < micro_batches):
            yield f"{action} is outside of {stages} stages and {micro_batches} micro-batches"
    slices = sorted({action.slice for action in counts})
    for stage in range(stages):
        for micro_batch in range(micro_batches):
            for part in slices:
                yield from _once_around(counts, stage, micro_batch, part)


def _once_around(counts: Counter[Action], stage: int, micro_batch: int, part: int) -> Iterator[str]:
    def has(kind: Kind) -> bool:
        return counts[Action(kind, stage, micro_batch, part)] > 0

    where = f"micro-batch {micro_batch} on stage {stage}"
    if not has(Kind.FORWARD):
        yield f"{where} has no forward"
    joined, inputs, weights = map(has, (Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT))
    if joined and (inputs or weights):
        yield f"{where} has a joined backward and a split one; keep one of them"
    elif not joined and not (inputs and weights):
        yield f"{where} has no complete backward; write B, or both I and W"


def _needs(action: Action, stages: int) -> Iterator[tuple[Kind, ...]]:
    """Kinds of which one must have run, with stage offset −1, 0 or +1 told by `_offset`."""
    if action.kind is Kind.FORWARD:
        if action.stage:
            yield (Kind.FORWARD,)
    elif action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
        yield (Kind.FORWARD,)
        if action.stage < stages - 1:
            yield (Kind.BACKWARD, Kind.INPUT_GRADIENT)
    elif action.kind is Kind.WEIGHT_GRADIENT:
        yield (Kind.INPUT_GRADIENT,)


def _offset(action: Action, kinds: tuple[Kind, ...]) -> int:
    if action.kind is Kind.FORWARD:
        return -1
    return 1 if Kind.BACKWARD in kinds else 0


def _stuck(schedule: Schedule, stages: int) -> Iterator[str]:
    """Play all lists; whatever stands still at the end waits in a circle."""
    done: set[Action] = set()
    left = Counter(a.stage for a in schedule.actions() if a.kind.per_micro_batch and a.kind is not Kind.FORWARD)
    position = [0] * len(schedule.orders)
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(schedule.orders):
            while position[device] < len(order) and not _waits_for(order[position[device]], done, left, stages):
                action = order[position[device]]
                done.add(action)
                if action.kind.per_micro_batch and action.kind is not Kind.FORWARD:
                    left[action.stage] -= 1
                position[device] += 1
                moved = True
    for device, order in enumerate(schedule.orders):
        if position[device] < len(order):
            action = order[position[device]]
            yield f"device {device} waits at {action} for {_waits_for(action, done, left, stages)}, which never comes"


def _waits_for(action: Action, done: set[Action], left: Counter[int], stages: int) -> str:
    if not action.kind.per_micro_batch:
        return f"{left[action.stage]} backward actions of stage {action.stage}" if left[action.stage] else ""
    for kinds in _needs(action, stages):
        stage = action.stage + _offset(action, kinds)
        wanted = [Action(kind, stage, action.micro_batch, action.slice) for kind in kinds]
        if not any(one in done for one in wanted):
            return " or ".join(map(str, wanted))
    return ""


def _belongs(plan: Plan, model: Model, cluster: Cluster) -> Iterator[str]:
    if plan.fingerprint != model.fingerprint:
        yield f"it was made for another model: fingerprint {plan.fingerprint}, {model.name} has {model.fingerprint}"
    layers = tuple(name for stage in plan.stages for name in stage.layers)
    if layers != model.names:
        yield f"its stages hold {len(layers)} layers, not each of the model's {len(model.names)} once and in order"
    kinds = tuple(device.kind.name for device in cluster.devices)
    if plan.device_kinds != kinds:
        yield f"it was made for devices {', '.join(plan.device_kinds)}; the cluster has {', '.join(kinds)}"
    used = Counter(device for stage in plan.stages for device in stage.devices)
    for device, count in used.items():
        if not 0 <= device < len(kinds):
            yield f"it uses device {device}; the cluster has devices 0 to {len(kinds) - 1}"
        if count > 1:
            yield f"device {device} holds {count} stages; this version runs one a device"
    if sorted(used) != sorted(plan.ranks):
        yield f"its ranks run on devices {sorted(plan.ranks)}, its stages on {sorted(used)}"


def _limits(plan: Plan, cluster: Cluster) -> Iterator[str]:
    if plan.bound > plan.step_time:
        yield f"its bound {plan.bound} ns lies above its step time {plan.step_time} ns"
    devices = cluster.devices
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            memory = devices[device].kind.memory if 0 <= device < len(devices) else None
            if memory is not None and stage.memory.total > memory:
                yield (
                    f"stage {number} needs {stage.memory.total} bytes of the {memory} that device {device} has; "
                    "move layers to a neighbour, hold fewer micro-batches, or make them smaller"
                )
