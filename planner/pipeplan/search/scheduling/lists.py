"""Conversion of the formulation's orders to action lists, and back.

::

    F_s(i), I_s(i), W_s(i)      orders of one replica, micro-batches 0, 1, 2, …
    sFm, sBm or sIm, sWm        lists of all r replicas: replica j runs m = j, j + r, j + 2 r, …, then R and U

Lists do not fix the order of tensors on link resources: these serve them first come, first served.
"""

from collections import Counter

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import FOUND, closing
from pipeplan.search.scheduling.replica_pipelines import micro_batches_of, replica_pipelines
from pipeplan_formulations.schedule import Op, Orders, PipelineSchedule


def as_schedule(orders: Orders, pipeline: Pipeline, micro_batches: int, *, two_lanes: bool = False) -> Schedule:
    """Return the schedule that runs these orders, one per data-parallel group, on every replica of a pipeline.

    Orders of tensors on link resources are left out. A replica with one micro-batch less than the orders leaves out the
    last one, which cannot deadlock. As in all families, a device's list ends with its reductions, then its updates.

    Raises
    ------
    InputError
        As `replica_pipelines`.
    """
    pipelines = replica_pipelines(pipeline)
    splits = {op.stage for order in orders for op in order if op.kind == "W"}
    lists: list[tuple[Action, ...]] = [()] * pipeline.devices
    for group, devices in enumerate(pipelines.groups):
        order = orders[group]
        for replica, device in enumerate(devices):
            own = micro_batches_of(pipelines, replica, micro_batches)
            actions = (
                Action(kind_of(op, op.stage in splits), op.stage, replica + pipelines.count * op.micro_batch)
                for op in order
                if op.micro_batch < own
            )
            lists[device] = (*actions, *closing(pipelines.hosted(group), pipeline.replicas, pipeline.tied))
    return Schedule(FOUND, tuple(lists), two_lanes)


def kind_of(op: Op, split: bool) -> Kind:
    """Action kind of an operation, given whether its stage splits its backwards."""
    return Kind.BACKWARD if op.kind == "I" and not split else Kind(op.kind)


def as_orders(schedule: Schedule, pipeline: Pipeline, problem: PipelineSchedule) -> Orders | None:
    """Return the orders of a schedule's first replica, for a problem that `schedule_problem` made of the pipeline.

    The n-th action of each kind and stage becomes that of micro-batch n, which is no worse. Where the problem splits a
    backward that the schedule joins, it becomes an I followed by its W. Returns None if the schedule splits a backward
    that the problem joins, or if the numbers of lanes differ.

    Raises
    ------
    InputError
        As `replica_pipelines`.
    """
    orders: list[tuple[Op, ...]] = []
    if schedule.two_lanes != any(problem.two_lanes):
        return None
    for devices in replica_pipelines(pipeline).groups:
        seen: Counter[tuple[Kind, int]] = Counter()
        order: list[Op] = []
        for action in schedule.orders[devices[0]]:
            if not action.kind.per_micro_batch:
                continue
            split = problem.split[action.stage]
            if action.kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT) and not split:
                return None
            for kind in ("I", "W") if action.kind is Kind.BACKWARD and split else (_letter(action.kind),):
                order.append(Op(kind, action.stage, seen[Kind(kind), action.stage]))
                seen[Kind(kind), action.stage] += 1
        orders.append(tuple(order))
    return tuple(orders)


def _letter(kind: Kind) -> str:
    return "I" if kind is Kind.BACKWARD else kind.value
