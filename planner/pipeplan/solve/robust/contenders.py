"""Additional plans to compare where times vary, besides those that the search found.

A plan with nominal step v takes at least v on average, where no links are shared (docs/bounds/steps.md). So a plan
whose nominal step exceeds another plan's mean cannot have a smaller mean, and need not be sampled.

Where any order may be chosen, other orders of a plan's actions are compared too: those of families, and some with
slack. An order without slack waits as soon as one tensor is late. So orders are also made as if every tensor took
longer than it does: a device that has other work meanwhile does it first.

::

    tensors on time       F0 B0 F1 B1 …        each B as early as possible
    tensors late          F0 F1 B0 F2 B1 …     one more in flight, if it fits in memory: hides late tensors
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from pipeplan.core.cluster import StageDevices
from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.costs.chain import Boundaries
from pipeplan.schedules.family import FOUND, family_of
from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.scheduling import as_schedule, schedule_problem, splittable
from pipeplan.search.scheduling.evaluator import Evaluator
from pipeplan.search.scheduling.families import family_schedules
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.in_flight import FREE
from pipeplan.search.space.outside import unable
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.schedule.constructive import constructive

MOST_PARTITIONS = 4
"""Number of fastest partitions that are tried under every schedule of the space."""
MOST_ACTIONS = 400_000
"""Most actions simulated for that, over all plans."""

ADDED_LAGS = (1, 2, 4)
"""Additional lags of tensors for orders with slack, in multiples of the spread of the longest action."""
SECONDS_PER_LAG = 0.5
"""Seconds for each of these lags."""
MOST_REORDERED_ACTIONS = 50_000
"""Most actions of a step, with backwards split, for which orders with slack are tried."""


def distinct(plans: Iterable[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return the plans without duplicates, fastest first; of equal plans the first."""
    found: dict[object, EvaluatedPlan] = {}
    for evaluated in plans:
        found.setdefault(_identity(evaluated), evaluated)
    return sorted(found.values(), key=lambda evaluated: evaluated.value)


def related_plans(spaces: Spaces, plans: list[EvaluatedPlan], limit: float = inf) -> Iterator[EvaluatedPlan]:
    """Yield the best partitions of these plans under the other schedules and micro-batch sizes that they fit.

    A search for one best plan skips plans whose bounds are not better. Among them may be one that waits less where
    times vary: with more micro-batches in flight, or with smaller ones, whose perturbations average out.

    Parameters
    ----------
    limit : float
        Nanoseconds: plans whose nominal steps exceed it are left out.
    """
    seen: set[object] = set()
    left = MOST_ACTIONS
    for evaluated in plans:
        boundaries, partition = evaluated.boundaries, _partition(evaluated)
        if partition in seen:
            continue
        seen.add(partition)
        if len(seen) > MOST_PARTITIONS:
            return
        space = spaces.of(evaluated.candidate)
        for candidate in _variants(space, evaluated):
            if candidate.problem.evaluate(boundaries) > limit:
                continue
            left -= 2 * candidate.micro_batches * candidate.depth
            if left < 0:
                return
            yield evaluate(space.cluster, candidate, boundaries)


def _variants(space: Space, evaluated: EvaluatedPlan) -> Iterator[Candidate]:
    """Yield candidates with the plan's micro-batch size first, then with others that leave no replica idle."""
    chain = evaluated.candidate.chain
    others = [size for size in space.sizes if size != chain.micro_batch]
    for size in (chain.micro_batch, *others):
        count = space.job.batch // size
        if max(chain.replicas) <= count and unable(space, chain.replicas, count) is None:
            yield from _orders(space, chain.groups, size, evaluated.boundaries)


def _orders(space: Space, groups: StageDevices, size: int, boundaries: Boundaries) -> Iterator[Candidate]:
    """Yield every family of the space that the partition fits, and 1F1B with as many micro-batches in flight as fit."""
    fitting = [candidate for candidate in space.candidates(groups, size) if candidate.fits(boundaries)]
    others = [other for each in fitting for other in each.with_more_in_flight(space.cluster, boundaries)]
    every = {(each.family.name, each.in_flight): each for each in (*fitting, *others)}
    yield from every.values()


def _identity(evaluated: EvaluatedPlan) -> object:
    """Key of equal plans. 1F1B's counts determine its lists, whatever family they come from."""
    candidate, family = evaluated.candidate, evaluated.candidate.family
    order: object = FREE if family.alternates and not family.two_lanes else family
    return _partition(evaluated), candidate.recompute(evaluated.boundaries), candidate.in_flight, order


def _partition(evaluated: EvaluatedPlan) -> object:
    chain = evaluated.candidate.chain
    groups = tuple(tuple(device.index for device in group) for group in chain.groups)
    return groups, chain.micro_batch, chain.split, chain.zero, evaluated.boundaries


def orders_with_slack(spaces: Spaces, plan: EvaluatedPlan, spread: float) -> Iterator[EvaluatedPlan]:
    """Yield the plan's partition under other orders that fit; nothing unless any order may be chosen.

    Parameters
    ----------
    spread : float
        Relative spread of the times.
    """
    candidate, pipeline = plan.candidate, plan.pipeline
    space = spaces.of(candidate)
    if not space.any_order or candidate.family.two_lanes or len(set(candidate.replicas)) > 1:
        return
    if 3 * candidate.micro_batches * candidate.depth > MOST_REORDERED_ACTIONS:
        return
    seen = {candidate.schedule(pipeline).orders}
    for schedule in _schedules_with_slack(pipeline, candidate.micro_batches, spread):
        if schedule.orders in seen or schedule.two_lanes:
            continue
        seen.add(schedule.orders)
        other = _with_lists(space, candidate, plan.boundaries, schedule)
        if other is not None:
            yield other


def _schedules_with_slack(pipeline: Pipeline, micro_batches: int, spread: float) -> Iterator[Schedule]:
    split = [splittable(stage) for stage in pipeline.stages]
    yield from family_schedules(pipeline, micro_batches, split)
    problem = schedule_problem(pipeline, micro_batches, split, safe=True)
    longest = max(max(problem.forward), max(problem.backward), max(problem.weight))
    for times in ADDED_LAGS:
        more = round(times * spread * longest)
        late = replace(
            problem,
            lag=tuple(lag + more for lag in problem.lag),
            lag_back=tuple(lag + more for lag in problem.lag_back),
        )
        found = constructive(late, SECONDS_PER_LAG) if more else None
        if found is not None:
            yield as_schedule(found[1], pipeline, micro_batches)


def _with_lists(space: Space, candidate: Candidate, boundaries: Boundaries, schedule: Schedule) -> EvaluatedPlan | None:
    """The plan with these action lists; None if they do not fit in memory."""
    family = family_of(replace(schedule, family=FOUND), "an order with slack")
    other = replace(candidate, family=family, free=False)
    if not other.fits(boundaries):
        return None
    plan = evaluate(space.cluster, other, boundaries)
    return plan if Evaluator(plan.pipeline).fits(other.schedule(plan.pipeline)) else None
