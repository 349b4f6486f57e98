"""Event simulation of a schedule on a pipeline: the times and memory of every plan.

A device runs its list in order, one action at a time. What an action waits for besides is stated in
`pipeplan_formulations.common.dependencies`. What a tensor's way to another device costs, with a transfer of occupancy o
and latency l:

::

    copy      F━━━━F━━━━        leaves when its action has ended; its wires are busy for o; there l later
                   ═══o══╌l╌▷
    none      F━━━━      F━━━━  the same, and the device waits until its tensor has left
                   ═══o══╌l╌▷
    stream    F━━━━F━━━━        may leave while it is being made: its wires are busy for o, the last byte leaves
              ═══o══             when o is over and the action has ended; there l later
                   ╌l╌▷

Micro-batch m of a stage with r replicas runs on replica m mod r, and each pair of replicas has a transfer of its own. R
is a collective: it begins on all replicas of a stage when the last of them has come to it, and lasts as long on each.
Stages that hold copies of the same weights (`Pipeline.tied`) begin theirs together.

A wire that several transfers share serves them in order of readiness. A transfer that needs two wires (the network
cards of two nodes) takes both at once.

A two-lane device runs forwards on lane 0 and everything else on lane 1, each in list order, and a forward waits for the
actions of lane 1 that stand ahead of it in the list: they free the memory that it takes (see
`pipeplan.schedules.alternate`). Each lane has its share of the arithmetic units, so an F or a B takes F + B.
"""

from pipeplan.core.collector import without_collector
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.core.timeline import Span, Timeline, TransferSpan
from pipeplan.simulate.program import Program, number
from pipeplan.simulate.results import critical_path, deadlock, memory_lines, spans, transfer_spans
from pipeplan.simulate.run import Trace, run
from pipeplan.simulate.structure import NOTHING

__all__ = ["longest_path", "makespan", "simulate"]


@without_collector()
def simulate(schedule: Schedule, pipeline: Pipeline, *, share: bool = True) -> Timeline:
    """The exact time line of a schedule on a pipeline, in nanoseconds and bytes.

    Parameters
    ----------
    schedule : Schedule
        One list a device of the pipeline. In a token-sliced schedule a stage's bytes are those of one slice.
    pipeline : Pipeline
    share : bool
        False gives every pair of replicas a wire of its own in each direction. That is a relaxation (never later than
        with sharing) in which the order of everything is known before the times are, as inequalities over all
        partitions need (`pipeplan.search.path_cuts`).

    Raises
    ------
    PlanError
        If lists and pipeline do not fit each other, actions are missing or doubled, or the order deadlocks; the text
        names what each device waits for.
    """
    program, trace = _played(schedule, pipeline, share)
    senders = [i for i, channel in enumerate(program.channel_of) if channel != NOTHING]
    ran = tuple(sorted(spans(program, trace, range(len(program.actions))), key=lambda span: span.start))
    return Timeline(
        spans=ran,
        transfers=tuple(sorted(transfer_spans(program, trace, senders), key=lambda flight: flight.start)),
        memory=memory_lines(ran, pipeline),
        critical=critical_path(program, trace),
    )


@without_collector()
def makespan(schedule: Schedule, pipeline: Pipeline) -> int:
    """The nanoseconds that `simulate` would show, without the rest of its time line.

    Raises
    ------
    PlanError
        As in `simulate`.
    """
    program, trace = _played(schedule, pipeline, True)
    return max(trace.signals[: len(program.actions)], default=0)


def longest_path(schedule: Schedule, pipeline: Pipeline, *, share: bool = True) -> tuple[Span | TransferSpan, ...]:
    """The critical path that `simulate` would show, without the rest of its time line.

    Raises
    ------
    PlanError
        As in `simulate`.
    """
    return critical_path(*_played(schedule, pipeline, share))


def _played(schedule: Schedule, pipeline: Pipeline, share: bool) -> tuple[Program, Trace]:
    program = number(schedule, pipeline, share)
    trace = run(program)
    problem = deadlock(program, trace)
    if problem is not None:
        raise PlanError(problem)
    return program, trace
