"""Checks that the devices, stages and replicas of a schedule and a pipeline match."""

from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule


def check_actions(schedule: Schedule, pipeline: Pipeline) -> None:
    """Refuse actions whose stage does not exist or whose device is not the one in the pipeline's placement.

    Raises
    ------
    PlanError
        With the first fault.
    """
    rolling = schedule.batches > 1
    stages, every = len(pipeline.placement), [frozenset(homes) for homes in pipeline.placement]
    for device, order in enumerate(schedule.orders):
        for action in order:
            stage = action.stage
            if action.kind is Kind.GATHER and not rolling:
                raise PlanError(f"{action} on device {device}: a gather precedes the list; drop it")
            if stage >= stages:
                raise PlanError(f"{action} on device {device}: the pipeline has stages 0 to {stages - 1} only")
            homes = pipeline.placement[stage]
            owner = homes[action.micro_batch % len(homes)] if action.kind.per_micro_batch else device
            right = owner == device and device in every[stage]
            if not right:
                raise PlanError(f"{action} stands in device {device}'s list, but {_where(action, pipeline)}")


def _where(action: Action, pipeline: Pipeline) -> str:
    homes = pipeline.placement[action.stage]
    if len(homes) == 1 or not action.kind.per_micro_batch:
        return f"stage {action.stage} is on {', '.join(map(str, homes))}"
    owner = pipeline.device_of(action.stage, action.micro_batch)
    replica = action.micro_batch % len(homes)
    return f"micro-batch {action.micro_batch} of stage {action.stage} is its replica {replica}'s, on {owner}"


def check_pipeline(schedule: Schedule, pipeline: Pipeline) -> None:
    """Refuse a wrong number of lists, replicas on one device, and pairs of replicas without a transfer.

    Raises
    ------
    PlanError
        With the first fault.
    """
    if len(schedule.orders) != pipeline.devices:
        raise PlanError(
            f"the schedule has lists for {len(schedule.orders)} devices, the pipeline {pipeline.devices}; "
            "write one list per device, empty where a device does nothing"
        )
    stages = len(pipeline.stages)
    if len(pipeline.placement) != stages:
        raise PlanError(f"the pipeline has devices for {len(pipeline.placement)} stages, and {stages} stages")
    for stage, homes in enumerate(pipeline.placement):
        if not homes or len(set(homes)) != len(homes):
            raise PlanError(f"stage {stage} is on devices {homes}; it needs one device per replica, all different")
    _check_tied(pipeline)
    for name, rows in (("transfers", pipeline.transfers), ("returns", pipeline.returns)):
        if len(rows) != stages - 1:
            raise PlanError(f"the pipeline has {name} for {len(rows)} boundaries, and {stages - 1} boundaries")
        for s, (row, period) in enumerate(zip(rows, pipeline.periods, strict=True)):
            if len(row) != period:
                raise PlanError(
                    f"boundary {s} has {len(row)} {name}; {pipeline.replicas[s]} and {pipeline.replicas[s + 1]} "
                    f"replicas need {period}, their least common multiple"
                )


def _check_tied(pipeline: Pipeline) -> None:
    found = [stage for group in pipeline.tied for stage in group]
    strange = [stage for stage in found if not 0 <= stage < len(pipeline.stages)]
    if strange or len(set(found)) != len(found):
        raise PlanError(
            f"tied stages are {pipeline.tied}; each group names stages 0 to {len(pipeline.stages) - 1}, none twice"
        )
    for group in pipeline.tied:
        homes = [device for stage in group for device in pipeline.placement[stage]]
        if len(set(homes)) != len(homes):
            raise PlanError(f"tied stages {group} share a device, which cannot sum copies with itself; keep them apart")
