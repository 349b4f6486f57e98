"""Choice of the plan that is best where times vary, by sampling all plans under the same disturbances.

Two rounds of samples: a few steps of every plan, and all that are wanted of those that may be the best::

    every plan     ├─ first ─┤
    finalists      ├─ first ─┼──────── the rest ────────┤      choice among these
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeplan.core.perturbation import Robust
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.robust.contenders import distinct, relatives, roomier
from pipeplan.search.space.space import Space
from pipeplan.simulate.perturbed.factors import BLOCK
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.simulate.perturbed.sequence import has_own_resources
from pipeplan.simulate.perturbed.statistics import Estimate, mean, quantile
from pipeplan.simulate.perturbed.times import Ints
from pipeplan.simulate.program import build_program
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits

MOST = 24
"""Plans that are compared: of more, the fastest nominal."""
REORDERED = 2
"""Plans, the fastest ones tried, whose order is changed where any order may be chosen."""
FEWEST = 3
"""As many are, however long that takes."""
EVENTS = 10_000_000
"""Actions that may be run one by one, over all plans and samples: less than half a minute,"""
A_SECOND = 200_000
"""and fewer where there is less time: so many for each second."""

FIRST = 200
"""Samples of the first round, or as many as the quantile needs."""
FINALISTS = 6
"""Plans of the second round at most, beside the one that is fastest nominal."""
CLEAR = 3.0
"""Standard errors by which a plan must be behind to be left out of it."""

Runs = list[tuple[EvaluatedPlan, Ints]]


@dataclass(frozen=True)
class Row:
    """One plan that was compared, in nanoseconds.

    Attributes
    ----------
    evaluated : EvaluatedPlan
        ``evaluated.value`` is the nominal step.
    samples : int
        How many perturbed steps it has run.
    mean, quantile : Estimate
        Of these.
    behind : Estimate
        By how much its mean lies above that of the chosen plan; both met the same disturbances.
    """

    evaluated: EvaluatedPlan
    samples: int
    mean: Estimate
    quantile: Estimate
    behind: Estimate

    @property
    def value(self) -> int:
        """The nominal step."""
        return self.evaluated.value


@dataclass(frozen=True)
class Choice:
    """What was compared, the best first.

    Attributes
    ----------
    question : Robust
    samples : int
        Those of the chosen plan, and of all that might have taken its place.
    seed : int
    rows : tuple of Row
        The first one is chosen.
    limit : float
        Nanoseconds: plans that take more nominal were not compared; it is what the fastest nominal one takes
        perturbed (its mean or quantile).
    more : int
        Plans that keep the limit and were left out all the same, as there were too many.
    mean_bound : int or None
        Nanoseconds that no plan of the searched space takes less than on average, if that is proved.

    Raises
    ------
    ValueError
        If there is no plan.
    """

    question: Robust
    samples: int
    seed: int
    rows: tuple[Row, ...]
    limit: float
    more: int
    mean_bound: int | None

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a robust choice compares one plan at least")

    @property
    def chosen(self) -> EvaluatedPlan:
        """The best plan."""
        return self.rows[0].evaluated

    @property
    def nominal(self) -> Row:
        """The plan that would be chosen if nothing varied."""
        return min(self.rows, key=lambda row: row.value)


def choose(
    space: Space,
    best: EvaluatedPlan,
    tried: Iterable[EvaluatedPlan],
    bound: int,
    question: Robust,
    seed: int,
    clock: Clock | None = None,
) -> Choice | None:
    """Compare plans under the same disturbances; None if the time was up before the first one was through.

    Parameters
    ----------
    best : EvaluatedPlan
        The fastest plan if nothing varies.
    tried : iterable of EvaluatedPlan
        All others that are known.
    bound : int
        Nanoseconds: no plan of the space takes less nominal.
    clock : Clock, optional
        Ends the comparison; what has been compared by then counts.

    Raises
    ------
    KeyboardInterrupt
        If the first one was interrupted.
    """
    runs: Runs = []
    limit, more = float(best.value), 0
    clock = clock or Clock(Limits(time=math.inf))
    samples, most = _room(best, question, clock.left)
    try:
        runs.append((best, steps(best, question, first_round(question, samples), seed, clock=clock)))
        limit = max(limit, objective(runs[0][1], question).value)
        known = distinct([best, *tried])
        roomy = (other for plan in known[:REORDERED] for other in roomier(space, plan, question.spread))
        every = distinct([*known, *_in_time(relatives(space, known, limit), clock), *_in_time(roomy, clock)])
        others = [plan for plan in every if plan is not best and plan.value <= limit and space.outside(plan) is None]
        more = max(len(others) - (most - 1), 0)
        race([best, *others[: most - 1]], question, samples, seed, runs, clock)
    except KeyboardInterrupt:  # what has been compared counts
        if not runs:
            raise
    except OutOfTimeError:
        if not runs:
            return None

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
        rows=tuple(
            Row(plan, len(run), mean(run), quantile(run, question.shown), behind(run, winner)) for plan, run in runs
        ),
        limit=limit,
        more=more,
        mean_bound=bound if own_wires(space) else None,
    )


def steps(
    plan: EvaluatedPlan, question: Robust, samples: int, seed: int, start: int = 0, clock: Clock | None = None
) -> Ints:
    """Perturbed steps of a plan, from number ``start`` on.

    Raises
    ------
    OutOfTimeError
        If the clock says so.
    """
    names = [device.index for device in plan.candidate.chain.devices]
    schedule = plan.candidate.schedule(plan.pipeline)
    check = (lambda: None) if clock is None else clock.check
    return step_times(
        schedule, plan.pipeline, question, samples=samples, seed=seed, devices=names, start=start, check=check
    )


def first_round(question: Robust, samples: int) -> int:
    """Its samples."""
    least = max(FIRST, question.least_samples)
    return min(samples, -(-least // BLOCK) * BLOCK)


def race(
    plans: Sequence[EvaluatedPlan], question: Robust, samples: int, seed: int, runs: Runs, clock: Clock | None = None
) -> None:
    """Fill ``runs``, which may hold the first plan's first round already, so that nothing is lost on an interrupt.

    The first plan, the fastest nominal, is always a finalist.
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
    """What plans are chosen by."""
    return mean(run) if question.quantile is None else quantile(run, question.quantile)


def behind(run: Ints, other: Ints) -> Estimate:
    """By how much a plan's mean lies above another one's, over the steps that both have run under like disturbances."""
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
        return apart.value <= CLEAR * apart.error

    return list(dict.fromkeys([0, *[place for place in ranked if may_win(place)][:FINALISTS]]))


def own_wires(space: Space) -> bool:
    """Whether no plan of the space has transfers that share a wire.

    Within a node every pair of devices has its own. Two devices have no others that could share their cards.
    """
    return len(space.cluster.nodes) == 1 or len(space.cluster.devices) <= 2


def _in_time(plans: Iterable[EvaluatedPlan], clock: Clock) -> Iterator[EvaluatedPlan]:
    """As many as come in half of the time that is left."""
    most = clock.left / 2
    for plan in plans:
        yield plan
        if clock.left < most:
            return


def _room(plan: EvaluatedPlan, question: Robust, seconds: float) -> tuple[int, int]:
    """Samples, and the most plans: fewer of both where every step of a plan like this one is run by itself."""
    program = build_program(plan.candidate.schedule(plan.pipeline), plan.pipeline, True)
    if has_own_resources(program):
        return question.wanted, MOST
    events = min(EVENTS, int(min(seconds, EVENTS) * A_SECOND))
    affordable = events // max(len(program.actions), 1)  # steps
    samples = question.wanted
    if question.samples is None:
        each = affordable // (2 * FINALISTS) // BLOCK * BLOCK
        samples = min(samples, max(each, question.least_samples))
    return samples, min(MOST, max(FEWEST, affordable // 2 // first_round(question, samples)))
