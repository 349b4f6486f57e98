"""Bounds that need no solver: no schedule of the problem ends earlier.

By `windows` every operation A has a head, its time and a tail, hence T ≥ head + time + tail. Of all that a lane runs or
a wire carries, one thing at a time, each within its head and tail, T is at least what Jackson's rule reaches with
interruptions (`packing`). That contains, for the device of a single stage s with one lane,

    joined   T ≥ head of F_s(0) + M (F_s + B_s) + tail of I_s
    split    T ≥ head of F_s(0) + M (F_s + I_s + W_s) + ending_s
             T ≥ head of F_s(0) + M (F_s + I_s) + tail of I_s

(keep only the operations named, and the least tail of them), and for K_s micro-batches in memory, M = (q + 1) K_s + r,
the round trips F_s(0) → … → I_s(0) → F_s(K_s) → … → I_s(K_s) → …, one after the other: the period of a stage is at
least its round trip over K_s.
"""

from pipeplan_formulations.schedule.instance import PipelineSchedule
from pipeplan_formulations.schedule.packing import jackson
from pipeplan_formulations.schedule.windows import Windows, windows


def lower_bound(problem: PipelineSchedule, known: Windows | None = None) -> int:
    """A lower bound on (5) over all schedules; `known` are the problem's windows, if made already.

    Returns 0 if no schedule is possible.
    """
    if not problem.possible:
        return 0
    known = known or windows(problem)
    bound = 0
    for rows in problem.machines:
        items = [
            (known.head[kind][s][i], problem.time[kind][s], known.tail[kind][s][i])
            for kind, s in rows
            for i in range(problem.micro_batches)
        ]
        bound = max([bound, jackson(items), *(sum(item) for item in items)])
    return bound
