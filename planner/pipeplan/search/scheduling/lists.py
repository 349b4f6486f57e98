"""From the formulation's orders to action lists, and back.

::

    F_s(i), I_s(i), W_s(i)      orders of one row, micro-batches 0, 1, 2, …
    sFm, sBm or sIm, sWm        lists of all rows: row j of r runs m = j, j + r, j + 2 r, …, then R and U

Lists do not say in which order tensors pass their wires: first come, first served.
"""

from collections import Counter

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules.family import closing
from pipeplan.search.scheduling.rows import rows_of, share
from pipeplan_formulations.schedule import Op, Orders, PipelineSchedule

FAMILY = "found"
"""What schedules are called that no family wrote."""


def as_schedule(orders: Orders, pipeline: Pipeline, micro_batches: int, *, two_lanes: bool = False) -> Schedule:
    """The schedule that runs such orders, one a column, on every row of a pipeline; what they say of wires is left out.

    A row that has one micro-batch less than the orders leaves out the last one: lists that end still do. As in all
    families a device's reductions stand behind everything else, then its updates.

    Raises
    ------
    InputError
        If the replicas are not rows.
    """
    rows = rows_of(pipeline)
    splits = {op.stage for order in orders for op in order if op.kind == "W"}
    lists: list[tuple[Action, ...]] = [()] * pipeline.devices
    for column, devices in enumerate(rows.columns):
        order = orders[column]
        for row, device in enumerate(devices):
            own = share(rows, row, micro_batches)
            actions = (
                Action(kind_of(op, op.stage in splits), op.stage, row + rows.count * op.micro_batch)
                for op in order
                if op.micro_batch < own
            )
            lists[device] = (*actions, *closing(rows.hosted(column), pipeline.replicas, pipeline.tied))
    return Schedule(FAMILY, tuple(lists), two_lanes)


def kind_of(op: Op, split: bool) -> Kind:
    """What an operation is called in lists, by whether its stage splits its backwards."""
    return Kind.BACKWARD if op.kind == "I" and not split else Kind(op.kind)


def as_orders(schedule: Schedule, pipeline: Pipeline, problem: PipelineSchedule) -> Orders | None:
    """The orders of a schedule's first row, for a problem that `schedule_problem` made of the pipeline.

    The n-th action of each kind and stage becomes that of micro-batch n, which is no worse, and a joined backward of a
    stage that the problem splits an I and a W in a row. None if the schedule splits one that the problem does not, or
    runs on two lanes where the problem has one, or on one where it has two.

    Raises
    ------
    InputError
        If the replicas are not rows.
    """
    orders: list[tuple[Op, ...]] = []
    if schedule.two_lanes != any(problem.two_lanes):
        return None
    for devices in rows_of(pipeline).columns:
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
