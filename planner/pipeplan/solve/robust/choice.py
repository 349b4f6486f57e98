"""Choice of the best plan where times vary, by samples of all plans under the same perturbations.

Two rounds of samples: a few steps of every plan, and all requested steps of the plans that may be the best::

    every plan     ├─ first ─┤
    finalists      ├─ first ─┼──────── the rest ────────┤      choice among these
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pipeplan.core.cluster import Cluster
from pipeplan.core.perturbation import Robust
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.space.spaces import Spaces
from pipeplan.simulate.perturbed.factors import BLOCK
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.simulate.perturbed.sequence import has_own_resources
from pipeplan.simulate.perturbed.statistics import Estimate, mean, quantile
from pipeplan.simulate.perturbed.times import Ints
from pipeplan.simulate.program import build_program
from pipeplan.solve.robust.compared import Choice, ComparedPlan
from pipeplan.solve.robust.contenders import distinct, orders_with_slack, related_plans
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits

MOST_PLANS = 24
"""Most plans that are compared; of more, those with the fastest nominal steps."""
MOST_REORDERED = 2
"""Number of fastest plans for which other orders are tried, where any order may be chosen."""
LEAST_PLANS = 3
"""Least plans that are compared, however long that takes."""
MOST_EVENTS = 10_000_000
"""Most actions of the event loop, over all plans and samples: less than half a minute,"""
EVENTS_PER_SECOND = 200_000
"""and at most this many per second of the time left."""

FIRST_SAMPLES = 200
"""Samples of the first round, or more if the quantile needs them."""
MOST_FINALISTS = 6
"""Most plans of the second round, in addition to the one with the fastest nominal step."""
CLEAR_ERRORS = 3.0
"""Standard errors by which a plan must be behind to be left out of the second round."""

Runs = list[tuple[EvaluatedPlan, Ints]]


def choose(
    spaces: Spaces,
    best: EvaluatedPlan,
    tried: Iterable[EvaluatedPlan],
    bound: int,
    question: Robust,
    seed: int,
    clock: Clock | None = None,
) -> Choice | None:
    """Compare plans under the same perturbations; None if the time ended before the first one was sampled.

    Parameters
    ----------
    best : EvaluatedPlan
        The plan with the fastest nominal step.
    tried : iterable of EvaluatedPlan
        All other plans that the search found.
    bound : int
        Lower bound in nanoseconds on the nominal steps of all plans of the spaces.
    clock : Clock, optional
        Ends the comparison; plans sampled by then count.

    Raises
    ------
    KeyboardInterrupt
        If the sampling of the first plan was interrupted.
    """
    runs: Runs = []
    # Sample the nominal best; its mean or quantile limits the nominal steps of the others.
    limit, more = float(best.value), 0
    clock = clock or Clock(Limits(time=math.inf))
    samples, most = _affordable(best, question, clock.left)
    try:
        runs.append((best, steps(best, question, first_round(question, samples), seed, clock=clock)))
        limit = max(limit, objective(runs[0][1], question).value)
        known = distinct([best, *tried])
        with_slack = (
            other for plan in known[:MOST_REORDERED] for other in orders_with_slack(spaces, plan, question.spread)
        )
        every = distinct([*known, *_in_time(related_plans(spaces, known, limit), clock), *_in_time(with_slack, clock)])
        others = [plan for plan in every if plan is not best and plan.value <= limit and spaces.outside(plan) is None]
        more = max(len(others) - (most - 1), 0)
        race([best, *others[: most - 1]], question, samples, seed, runs, clock)
    except KeyboardInterrupt:  # plans sampled so far count
        if not runs:
            raise
    except OutOfTimeError:
        if not runs:
            return None

    # Choose among the plans with the most samples; the others follow in the order of their estimates.
    most_samples = max(len(run) for _, run in runs)

    def order(run: tuple[EvaluatedPlan, Ints]) -> tuple[float, int]:
        return objective(run[1], question).value, run[0].value

    finalists = [run for run in runs if len(run[1]) == most_samples]
    first = min(finalists, key=order)
    winner = first[1]
    runs = [first, *sorted((run for run in runs if run is not first), key=order)]
    return Choice(
        question=question,
        samples=len(winner),
        seed=seed,
        compared=tuple(
            ComparedPlan(plan, len(run), mean(run), quantile(run, question.shown), behind(run, winner))
            for plan, run in runs
        ),
        limit=limit,
        more=more,
        mean_bound=bound if no_shared_links(spaces.cluster) else None,
    )


def steps(
    plan: EvaluatedPlan, question: Robust, samples: int, seed: int, start: int = 0, clock: Clock | None = None
) -> Ints:
    """Return perturbed step times of a plan in nanoseconds, from sample number ``start`` on.

    Raises
    ------
    OutOfTimeError
        If the time of ``clock`` is over.
    """
    names = [device.index for device in plan.candidate.chain.devices]
    schedule = plan.candidate.schedule(plan.pipeline)
    check = (lambda: None) if clock is None else clock.check
    return step_times(
        schedule, plan.pipeline, question, samples=samples, seed=seed, devices=names, start=start, check=check
    )


def first_round(question: Robust, samples: int) -> int:
    """Number of samples of the first round."""
    least = max(FIRST_SAMPLES, question.least_samples)
    return min(samples, -(-least // BLOCK) * BLOCK)


def race(
    plans: Sequence[EvaluatedPlan], question: Robust, samples: int, seed: int, runs: Runs, clock: Clock | None = None
) -> None:
    """Sample plans in two rounds into ``runs``, which keeps finished samples on an interrupt.

    ``runs`` may already hold the first round of the first plan.

    The first plan, with the fastest nominal step, is always a finalist.
    """
    few = first_round(question, samples)
    for plan in plans[len(runs) :]:
        runs.append((plan, steps(plan, question, few, seed, clock=clock)))
    if few == samples:
        return
    for place in _finalists(runs, question):
        plan, known = runs[place]
        runs[place] = plan, np.concatenate([known, steps(plan, question, samples - few, seed, few, clock)])


def objective(run: Ints, question: Robust) -> Estimate:
    """The estimate by which plans are chosen: the mean or the quantile."""
    return mean(run) if question.quantile is None else quantile(run, question.quantile)


def behind(run: Ints, other: Ints) -> Estimate:
    """Difference of two plans' means, over the samples that both have under the same perturbations."""
    common = min(len(run), len(other))
    return mean(run[:common] - other[:common])


def _finalists(runs: Runs, question: Robust) -> list[int]:
    found = [objective(run, question) for _, run in runs]
    ranked = sorted(range(len(runs)), key=lambda place: found[place].value)
    best = ranked[0]

    def may_win(place: int) -> bool:
        if question.quantile is None:
            apart = behind(runs[place][1], runs[best][1])
        else:
            error = math.sqrt(found[place].error ** 2 + found[best].error ** 2)
            apart = Estimate(found[place].value - found[best].value, error)
        return apart.value <= CLEAR_ERRORS * apart.error

    return list(dict.fromkeys([0, *[place for place in ranked if may_win(place)][:MOST_FINALISTS]]))


def no_shared_links(cluster: Cluster) -> bool:
    """Return True if no plan on the cluster has transfers that share a link.

    Within a node every pair of devices has a link of its own. With two devices, no others share their cards.
    """
    return len(cluster.nodes) == 1 or len(cluster.devices) <= 2


def _in_time(plans: Iterable[EvaluatedPlan], clock: Clock) -> Iterator[EvaluatedPlan]:
    """Yield plans for half of the time left."""
    most = clock.left / 2
    for plan in plans:
        yield plan
        if clock.left < most:
            return


def _affordable(plan: EvaluatedPlan, question: Robust, seconds: float) -> tuple[int, int]:
    """Numbers of samples and of plans at most: fewer of both where steps need the event loop."""
    program = build_program(plan.candidate.schedule(plan.pipeline), plan.pipeline, True)
    if has_own_resources(program):
        return question.wanted, MOST_PLANS
    events = min(MOST_EVENTS, int(min(seconds, MOST_EVENTS) * EVENTS_PER_SECOND))
    affordable = events // max(len(program.actions), 1)  # steps
    samples = question.wanted
    if question.samples is None:
        each = affordable // (2 * MOST_FINALISTS) // BLOCK * BLOCK
        samples = min(samples, max(each, question.least_samples))
    return samples, min(MOST_PLANS, max(LEAST_PLANS, affordable // 2 // first_round(question, samples)))
