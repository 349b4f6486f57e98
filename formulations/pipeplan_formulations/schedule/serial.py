"""The schedule that is always there: micro-batch after micro-batch, each W as soon as it may."""

from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule


def serial(problem: PipelineSchedule) -> Orders:
    """Feasible whenever the problem is `possible`; holds the least memory of all."""
    last = problem.stages - 1

    def place(op: Op) -> tuple[int, int, int]:
        if op.kind == "F":
            return op.micro_batch, op.stage, 0
        return op.micro_batch, last + 1 + last - op.stage, int(op.kind == "W")

    return tuple(tuple(sorted(problem.operations(d), key=place)) for d in range(problem.devices))
