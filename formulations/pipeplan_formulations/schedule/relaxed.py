"""The same problem without the weight gradients of all stages but the first, and without endings.

Where memory is tight a step is long because micro-batches must come back before others may set out. That takes their
forwards, their input gradients and what stage 0 does, hardly the W of the others; without these there is much less to
decide. Of any schedule leave out the W_s, s > 0, and let I_s free what they freed, which is earlier: it remains a
schedule. So whatever bounds the shorter problem bounds this part of the longer one.

What is left ends with stage 0: every F_s(i) and I_s(i) precedes I_0(i), and all that stage 0 runs on micro-batches
before the last precedes its last operation on the last. So the optimum is a bound on the end of that operation
(`Spans.first`), and with the ending of stage 0 on the whole step (`Spans.step`).
"""

from dataclasses import replace

from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule


def without_later_weights(problem: PipelineSchedule) -> PipelineSchedule:
    """Backwards of all stages but the first joined, W left out."""
    later = (0,) * (problem.stages - 1)
    return replace(
        problem,
        weight=(problem.weight[0], *later),
        split=(problem.split[0], *(False for _ in later)),
        freed=(problem.freed[0], *problem.taken[1:]),
        freed_by_weight=(problem.freed_by_weight[0], *later),
        ending=(0, *later),
    )


def last_micro_batches(orders: Orders, relaxed: PipelineSchedule, micro_batches: int) -> Orders:
    """Of orders of the original problem what the relaxed one has of the last `relaxed.micro_batches`.

    `micro_batches` is how many the orders have.
    """
    gone = micro_batches - relaxed.micro_batches
    return tuple(
        tuple(Op(kind, s, i - gone) for kind, s, i in order if i >= gone and (kind != "W" or relaxed.split[s]))
        for order in orders
    )
