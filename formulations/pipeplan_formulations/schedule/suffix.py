"""What the last micro-batches prove by themselves.

Take any schedule and leave out all operations of the first M − n micro-batches. What is left is a schedule of n
micro-batches: no operation waits for one that is gone, and no more is held than before. It begins with F_0(M − n),
which starts no earlier than its head in the whole problem, and takes at least the optimum T(n) of n micro-batches:

    T(M) ≥ head of F_0(M − n) + T(n).

So a bound that a solver proves on few micro-batches, where it can, raises that of many, where it cannot. The head
contains the round trips of the first M − n.
"""

from dataclasses import replace

from pipeplan_formulations.schedule.problem import PipelineSchedule
from pipeplan_formulations.schedule.windows import Windows

ROUNDS = 2
"""How many micro-batches a stage the shorter problem has."""


def shorter(problem: PipelineSchedule) -> PipelineSchedule | None:
    """The same with `ROUNDS` micro-batches a stage; None if that is more than half of what there are."""
    few = ROUNDS * problem.stages
    return replace(problem, micro_batches=few) if 2 * few <= problem.micro_batches else None


def suffix_bound(known: Windows, few: int, bound: int) -> int:
    """The bound on the problem whose windows are known that one on its last few micro-batches gives."""
    forwards = known.head["F"][0]
    return forwards[len(forwards) - few] + bound
