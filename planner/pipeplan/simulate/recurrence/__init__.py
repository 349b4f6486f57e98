"""Step times of GPipe and 1F1B without action lists, and without walking through all micro-batches.

Where every device has one stage and one lane, the times of a step follow a recurrence over (tick, stage). On stage s,
the forward of micro-batch m belongs to tick m and its backward to tick m + e_s. With k_s micro-batches in flight on
each of r_s replicas,

    e_s = max over t ≥ s of (k_t − 1) r_t              (GPipe: e_s = M, the number of micro-batches)

::

    tick         0   1   2   3   4   5   6             3 stages, 5 micro-batches, k = 3, 2, 1: e = 2, 1, 0
    stage 0     F0  F1  F2  F3  F4                     within a tick forwards run first, down the stages,
                        B0  B1  B2  B3  B4             then backwards, up the stages
    stage 1     F0  F1  F2  F3  F4
                    B0  B1  B2  B3  B4
    stage 2     F0  F1  F2  F3  F4
                B0  B1  B2  B3  B4

Nothing in a tick depends on a later one. Each replica meets its actions in the order of its list: (k_s − 1) r_s ≤ e_s,
and e_s < k_s r_s by the rule against deadlock, (k_t − 1) r_t < k_s r_s for s < t (`pipeplan.schedules.alternate`). A
tick maps its state (when each replica and each link is free, which gradients have arrived) to the next one.

Every pair of replicas has a link of its own in the recurrence. Where links share resources, its value is therefore a
lower bound, that of ``simulate(share=False)``. It is exact if no transfer would have waited (`recurrence.resources`).
Otherwise an event loop finds the times (`recurrence.events`), still without lists; also where replicas that begin their
passes together are not alike. With links of their own, stages of equally many replicas are as many pipelines side by
side, of which one is run (`recurrence.lanes`); so are replicas that share no resource with others
(`simulate.islands`).
"""

from collections.abc import Sequence
from functools import partial

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind
from pipeplan.simulate.islands import islands
from pipeplan.simulate.long_run import Advance, earliest_starts, long_run
from pipeplan.simulate.recurrence.events import run_events
from pipeplan.simulate.recurrence.lanes import lanes
from pipeplan.simulate.recurrence.leaps import run
from pipeplan.simulate.recurrence.resources import competing, undisturbed
from pipeplan.simulate.recurrence.ticks import Recurrence

__all__ = ["least_period", "least_step_time", "peaks", "period", "step_time"]


def step_time(pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> int:
    """Return the nanoseconds of a step of 1F1B with these in-flight counts. GPipe has all of a replica's micro-batches.

    Parameters
    ----------
    pipeline : Pipeline
        At most one stage on each device, without token slices.
    in_flight : sequence of int
        Micro-batches per replica of each stage.

    Raises
    ------
    PlanError
        If the pipeline has another form, or the counts deadlock.
    """
    recurrence = Recurrence(pipeline, micro_batches, in_flight)
    if not recurrence.shared and not recurrence.uneven:
        return least_step_time(pipeline, micro_batches, in_flight)
    return max(_shared_ends(pipeline, _parts(recurrence), pipeline.begins))


def least_step_time(pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> int:
    """Return a lower bound on `step_time`, in which nothing waits for another pair of replicas."""
    return max(_least_ends(pipeline, micro_batches, in_flight, pipeline.begins))


def period(pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> int:
    """Return the nanoseconds from step to step in a long run; parameters and errors are those of `step_time`."""
    recurrence = Recurrence(pipeline, micro_batches, in_flight)
    advance: Advance
    if recurrence.shared or recurrence.uneven:
        advance = partial(_shared_ends, pipeline, _parts(recurrence))
    else:
        advance = partial(_least_ends, pipeline, micro_batches, in_flight)
    return long_run(advance, (0,), earliest_starts(pipeline), pipeline.begins)


def least_period(pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> int:
    """Return a lower bound on `period`: a step of stage 0, in which no transfer waits for others, and of each alone."""
    found = [pipeline.begins[0] + _least_ends(pipeline, micro_batches, in_flight)[0]]
    for s, (stage, replicas) in enumerate(zip(pipeline.stages, pipeline.replicas, strict=True)):
        work = -(-micro_batches // replicas) * stage.total(Kind.FORWARD, Kind.BACKWARD)
        found.append(stage.gather + work + pipeline.ending(s))
    return max(found)


def _least_ends(
    pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int], begin: Sequence[int] = ()
) -> list[int]:
    """Return lower bounds on the end of each stage's step, which begins at ``begin``; without sharing, the ends."""
    found = []
    for lane, many in lanes(pipeline, micro_batches):
        recurrence = Recurrence(lane, many, in_flight)
        found.append(_ends(recurrence, run(recurrence, begin)[0]))
    return _with_closing(pipeline, [max(ends) for ends in zip(*found, strict=True)])


def _parts(recurrence: Recurrence) -> list[Recurrence]:
    """Return the recurrences of the islands that differ; that of all where replicas of unlike ones begin together."""
    pipeline = recurrence.pipeline
    if recurrence.uneven:
        return [recurrence]
    parts = [
        recurrence if part is pipeline else Recurrence(part, many, recurrence.counts)
        for part, many in islands(pipeline, recurrence.micro_batches)
    ]
    return [recurrence] if pipeline.coupled and len(parts) > 1 else parts


def _shared_ends(pipeline: Pipeline, parts: Sequence[Recurrence], begin: Sequence[int] = ()) -> list[int]:
    """Return the end of each stage's step, which begins at ``begin``, where replicas wait for others."""
    found = [_ends(part, _free(part, begin)) for part in parts]
    return _with_closing(pipeline, [max(ends) for ends in zip(*found, strict=True)])


def _free(recurrence: Recurrence, begin: Sequence[int]) -> Sequence[int]:
    """Return when each replica is free."""
    if not recurrence.uneven and not competing(recurrence):
        free, record = run(recurrence, begin, log=True)
        if undisturbed(recurrence, record, max(free)):
            return free
    return run_events(recurrence, begin)


def _ends(recurrence: Recurrence, free: Sequence[int]) -> list[int]:
    """Return when all replicas of each stage have run their backwards, given when each of them has."""
    return [max(free[i] for i in own) for own in recurrence.homes]


def _with_closing(pipeline: Pipeline, ends: Sequence[int]) -> list[int]:
    """Return when each stage ends its step, given when it has run its backwards: reductions and updates follow."""
    begins = {s: ends[s] for s, replicas in enumerate(pipeline.replicas) if replicas > 1}
    begins |= {s: max(ends[t] for t in group) for group in pipeline.tied for s in group}
    summed = [begins[s] + stage.reduce if s in begins else ends[s] for s, stage in enumerate(pipeline.stages)]
    return [end + stage.update for end, stage in zip(summed, pipeline.stages, strict=True)]


def peaks(pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> tuple[int, ...]:
    """Return the peak bytes of each device in such a step, whatever its times are.

    After the last forward of its warm-up a replica holds all that it may hold, and its next action is a backward.
    """
    found = list(pipeline.runtime)
    for stage, devices, most in zip(pipeline.stages, pipeline.placement, in_flight, strict=True):
        for replica, device in enumerate(devices):
            count = min(most, len(range(replica, micro_batches, len(devices))))
            workspace = max(stage.workspace, stage.forward_lane_workspace if count else 0)
            found[device] += stage.resident + count * stage.held + workspace
    return tuple(found)
