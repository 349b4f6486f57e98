"""Event simulation of a schedule on a pipeline: the times and memory of every plan.

A device runs its list in order, one action at a time. The other dependencies of an action are stated in
`pipeplan_formulations.common.dependencies`. A tensor's transfer to another device, with occupancy o and latency l:

::

    copy      F━━━━F━━━━        leaves when its action has ended; its links are busy for o; arrives l later
                   ═══o══╌l╌▷
    none      F━━━━      F━━━━  the same, and the device waits until its tensor has left
                   ═══o══╌l╌▷
    stream    F━━━━F━━━━        may leave while it is being made: its links are busy for o; the last byte leaves
              ═══o══             when o is over and the action has ended; arrives l later
                   ╌l╌▷

Micro-batch m of a stage with r replicas runs on replica m mod r, and each pair of replicas has a transfer of its own. R
is a collective: it begins on all replicas of a stage when the last of them has reached it, and takes equally long on
each. Stages that hold copies of the same weights (`Pipeline.tied`) begin theirs together. Where the replicas of a stage
gather parameters at the begin of a step, their lists begin when that has ended. Where they gather or sum in every pass
(`Pipeline.coupled`), they begin their first passes together, their second ones, and so on.

A link resource that several transfers share serves them in order of readiness. A transfer that needs two resources (the
network cards of two nodes) uses both at the same time.

A two-lane device runs forwards on lane 0 and everything else on lane 1, each in list order. A forward waits for the
actions of lane 1 that come before it in the list, because they free the memory that it needs (see
`pipeplan.schedules.alternate`). Each lane has its share of the arithmetic units, so an F or a B takes F + B.
"""

from collections.abc import Sequence

from pipeplan.core.collector import without_collector
from pipeplan.core.errors import PlanError
from pipeplan.core.options import require
from pipeplan.core.parts import switch
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.timeline import Span, Timeline, TransferSpan
from pipeplan.core.validate.memory import peaks_of_lists
from pipeplan.simulate.long_run import earliest_starts, long_run
from pipeplan.simulate.program import Program, build_program
from pipeplan.simulate.results import critical_path, deadlock, gathers, memory_lines, spans, transfer_spans
from pipeplan.simulate.rolling import SHOWN, load, period_of, rolling
from pipeplan.simulate.run import Trace, run
from pipeplan.simulate.structure import NOTHING

__all__ = [
    "SHOWN",
    "longest_path",
    "makespan",
    "memory_of_ranks",
    "period",
    "rolling",
    "rolling_period",
    "simulate",
    "timeline_of",
]


@without_collector()
def simulate(schedule: Schedule, pipeline: Pipeline, *, share: bool = True) -> Timeline:
    """Simulate a schedule on a pipeline and return the exact time line, in nanoseconds and bytes.

    Parameters
    ----------
    schedule : Schedule
        One list per device of the pipeline. In a token-sliced schedule a stage's bytes are those of one slice.
    pipeline : Pipeline
    share : bool
        False gives every pair of replicas a link of its own in each direction. That is a relaxation (never later than
        with sharing) in which the order of all events is independent of the times. Inequalities over all partitions
        need this (`pipeplan.search.path_cuts`).

    Raises
    ------
    InputError
        If an argument is none of these.
    PlanError
        If lists and pipeline do not match, actions are missing or doubled, or the order deadlocks; the text names the
        action for which each device waits.

    Notes
    -----
    The rules of actions, transfers, reductions and memory are those of ``docs/costs.md``.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> timeline = pipeplan.simulate(result.plan.schedule, result.plan.pipeline)
    >>> timeline.makespan == result.plan.step_time  # nanoseconds
    True
    """
    for value, kind in ((schedule, Schedule), (pipeline, Pipeline)):
        require(value, kind)
    switch(share, "share")
    schedule.check_parts()
    program, trace = _simulated(schedule, pipeline, share)
    rolls = program.batches > 1
    senders = [i for i, channel in enumerate(program.channel_of) if channel != NOTHING]
    ran = tuple(sorted(spans(program, trace, range(len(program.actions))), key=lambda span: span.start))
    return Timeline(
        spans=(*(() if rolls else gathers(pipeline)), *ran),
        transfers=tuple(sorted(transfer_spans(program, trace, senders), key=lambda span: span.start)),
        memory=memory_lines([span for span in ran if not (rolls and span.lane)], pipeline),
        critical=critical_path(program, trace, pipeline, range(pipeline.devices)),
    )


def timeline_of(plan: Plan) -> Timeline:
    """Return the time line that is shown of a plan: of a step, or of `SHOWN` batches where gradients are late."""
    lists = rolling(plan.schedule, plan.pipeline, SHOWN) if plan.staleness else plan.schedule
    return simulate(lists, plan.pipeline)


def memory_of_ranks(plan: Plan) -> tuple[int, ...]:
    """Return the bytes that each rank of a plan needs: of several stages, the most that it holds of all at a time."""
    stages = plan.pipeline.stages_on
    if any(len(own) > 1 for own in stages):
        timed = plan.schedule.two_lanes or plan.staleness > 0  # else the lists say it, without times
        return timeline_of(plan).peaks if timed else peaks_of_lists(plan.schedule, plan.pipeline)
    return tuple(plan.stages[stage].memory.total for (stage,) in stages)


@without_collector()
def makespan(schedule: Schedule, pipeline: Pipeline) -> int:
    """Return the makespan in nanoseconds, without the rest of the time line.

    Raises
    ------
    PlanError
        As in `simulate`.
    """
    program, trace = _simulated(schedule, pipeline, True)
    return max(trace.signals[: len(program.actions)], default=0)


@without_collector()
def period(schedule: Schedule, pipeline: Pipeline) -> int:
    """Return the average nanoseconds from step to step in a long run, rounded up (`pipeplan.simulate.long_run`).

    Raises
    ------
    PlanError
        As in `simulate`.
    """
    program = build_program(schedule, pipeline, True)
    alone = all(channel.alone for channel in program.channels)
    first = pipeline.placement[0]
    together = len(first) == 1 or any(action.kind is Kind.REDUCE and action.stage == 0 for action in program.actions)
    starts = earliest_starts(pipeline)
    if not alone and not together:  # replicas of stage 0 may use links in different steps
        return max(_run(program).signals[: len(program.actions)])
    earliest = [min((starts[s] for s in own), default=0) for own in pipeline.stages_on]
    lanes = (program.lanes[2 * device : 2 * device + 2] for device in range(pipeline.devices))
    last = [max((lane[-1] for lane in own if lane), default=NOTHING) for own in lanes]

    def advance(begin: Sequence[int]) -> list[int]:
        signals = _run(program, begin).signals
        return [0 if i == NOTHING else signals[i] for i in last]

    return long_run(advance, first, earliest, program.begins)


@without_collector()
def rolling_period(schedule: Schedule, pipeline: Pipeline) -> int:
    """Return the nanoseconds from batch to batch without a flush, with gradients one step late, rounded up.

    ``schedule`` has the lists of one batch. See `pipeplan.simulate.rolling`.

    Raises
    ------
    InputError
        If the lists do not alternate.
    PlanError
        As in `simulate`.
    """
    program, trace = _simulated(rolling(schedule, pipeline), pipeline, True)
    return max(period_of(program, trace), load(pipeline, schedule.micro_batches))


def longest_path(
    schedule: Schedule, pipeline: Pipeline, *, share: bool = True, to: int | None = None
) -> tuple[Span | TransferSpan, ...]:
    """Return the critical path, without the rest of the time line.

    ``to``: a longest path to the end of this stage's step, instead of the last one's.

    Raises
    ------
    PlanError
        As in `simulate`.
    """
    devices = range(pipeline.devices) if to is None else pipeline.placement[to]
    return critical_path(*_simulated(schedule, pipeline, share), pipeline, devices)


def _simulated(schedule: Schedule, pipeline: Pipeline, share: bool) -> tuple[Program, Trace]:
    program = build_program(schedule, pipeline, share)
    return program, _run(program)


def _run(program: Program, begin: Sequence[int] | None = None) -> Trace:
    trace = run(program, begin)
    problem = deadlock(program, trace)
    if problem is not None:
        raise PlanError(problem)
    return trace
