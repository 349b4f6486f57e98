"""Other orders of a plan's actions, where any order may be chosen: those of families, and some that leave room.

An order that is only just right stands still as soon as one tensor is late. So orders are also written as if every
tensor were away longer than it is: whoever can do something else meanwhile does it first.

::

    tensors at once       F0 B0 F1 B1 …        each B as soon as it can be
    tensors late          F0 F1 B0 F2 B1 …     one more in flight, if memory has room: late ones are not missed
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.costs.chain import Boundaries
from pipeplan.schedules import Family
from pipeplan.search.evaluate import Judged, judge
from pipeplan.search.scheduling import as_schedule, schedule_problem, splittable
from pipeplan.search.scheduling.families import written
from pipeplan.search.scheduling.judge import Judge
from pipeplan.search.scheduling.lists import FAMILY
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space
from pipeplan_formulations.schedule.constructive import constructive

Answer = TypeVar("Answer")

LATER = (1, 2, 4)
"""How much longer tensors are thought to be away, in spreads of the longest action."""
SECONDS = 0.5
"""For each of these."""
LARGEST = 50_000
"""Actions of a step, with backwards split, up to which that is tried."""


def roomier(space: Space, plan: Judged, spread: float) -> Iterator[Judged]:
    """The plan's partition under other orders that fit; nothing unless any order may be chosen there.

    Parameters
    ----------
    spread : float
        Relative, of the times.
    """
    candidate, pipeline = plan.candidate, plan.pipeline
    if not space.any_order or candidate.family.two_lanes or len(set(candidate.replicas)) > 1:
        return
    if 3 * candidate.micro_batches * candidate.depth > LARGEST:
        return
    seen = {candidate.schedule(pipeline).orders}
    for schedule in _orders(pipeline, candidate.micro_batches, spread):
        if schedule.orders in seen or schedule.two_lanes:
            continue
        seen.add(schedule.orders)
        other = _judged(space, candidate, plan.boundaries, schedule)
        if other is not None:
            yield other


def _orders(pipeline: Pipeline, micro_batches: int, spread: float) -> Iterator[Schedule]:
    split = [splittable(stage) for stage in pipeline.stages]
    yield from written(pipeline, micro_batches, split)
    problem = schedule_problem(pipeline, micro_batches, split, safe=True)
    longest = max(max(problem.forward), max(problem.backward), max(problem.weight))
    for times in LATER:
        more = round(times * spread * longest)
        late = replace(
            problem,
            lag=tuple(lag + more for lag in problem.lag),
            lag_back=tuple(lag + more for lag in problem.lag_back),
        )
        found = constructive(late, SECONDS) if more else None
        if found is not None:
            yield as_schedule(found[1], pipeline, micro_batches)


def _judged(space: Space, candidate: Candidate, boundaries: Boundaries, schedule: Schedule) -> Judged | None:
    """The plan with these lists, unless they need more memory than there is."""
    counts = in_flight(schedule, candidate.depth)
    lists = replace(schedule, family=FAMILY)
    family = Family(
        FAMILY, partial(_always, answer=lists), partial(_always, answer=counts), frozenset(), "an order with room"
    )
    other = replace(candidate, family=family, free=False)
    if not other.fits(boundaries):
        return None
    plan = judge(space.cluster, other, boundaries)
    return plan if Judge(plan.pipeline).fits(other.schedule(plan.pipeline)) else None


def in_flight(schedule: Schedule, stages: int) -> tuple[int, ...]:
    """For each stage the most micro-batches that a replica holds: from F to B, or to W."""
    most = [0] * stages
    for order in schedule.orders:
        held = Counter[int]()
        for action in order:
            if action.kind is Kind.FORWARD:
                held[action.stage] += 1
                most[action.stage] = max(most[action.stage], held[action.stage])
            elif action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
                held[action.stage] -= 1
    return tuple(most)


def _always(_replicas: Sequence[int], _micro_batches: int, *, answer: Answer) -> Answer:
    return answer
