"""Forwards alone in a plan's order: with token slices this is chunked prefill.

::

    stage 0   0F0  0F0.1  0F0.2  0F0.3                    a slice follows the one before it from stage to stage, and
    stage 1        1F0    1F0.1  1F0.2  1F0.3             reads its keys and values
"""

from dataclasses import replace

from pipeplan.core.pipeline import Stage, Transfer
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.simulate import makespan


def prefill_time(plan: Plan) -> int:
    """Return the predicted nanoseconds of the forwards of a batch: its backwards come behind, and take no time."""
    orders = tuple(
        tuple(sorted(order, key=lambda action: action.kind is not Kind.FORWARD)) for order in plan.schedule.orders
    )
    pipeline = plan.pipeline
    back = tuple((Transfer(),) * len(row) for row in pipeline.returns)
    alone = replace(pipeline, stages=tuple(map(_forward, pipeline.stages)), returns=back)
    return makespan(Schedule("prefill", orders), alone)


def _forward(stage: Stage) -> Stage:
    nothing = dict.fromkeys(("backward", "input_gradient", "weight_gradient", "update", "reduce", "gather"), 0)
    return replace(stage, **nothing, buckets=(), gather_buckets=())
