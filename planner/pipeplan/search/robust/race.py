"""Two rounds of samples: a few steps of every plan, and all that are wanted of those that may be the best.

::

    every plan     ├─ first ─┤
    finalists      ├─ first ─┼──────── the rest ────────┤      choice among these
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from pipeplan.core.perturbation import Robust
from pipeplan.search.evaluate import Judged
from pipeplan.simulate.perturbed.factors import BLOCK
from pipeplan.simulate.perturbed.sample import step_times
from pipeplan.simulate.perturbed.statistics import Estimate, mean, quantile
from pipeplan.simulate.perturbed.times import Ints
from pipeplan_formulations.common.clock import Clock

FIRST = 200
"""Samples of the first round, or as many as the quantile needs."""
FINALISTS = 6
"""Plans of the second round at most, beside the one that is fastest undisturbed."""
CLEAR = 3.0
"""Standard errors by which a plan must be behind to be left out of it."""

Runs = list[tuple[Judged, Ints]]


def steps(plan: Judged, question: Robust, samples: int, seed: int, start: int = 0, clock: Clock | None = None) -> Ints:
    """Disturbed steps of a plan, from number ``start`` on.

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
    plans: Sequence[Judged], question: Robust, samples: int, seed: int, runs: Runs, clock: Clock | None = None
) -> None:
    """Fill ``runs``, which may hold the first plan's first round already, so that nothing is lost on an interrupt.

    The first plan, the fastest undisturbed, is always a finalist.
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
            error = sqrt(found[place].error ** 2 + found[best].error ** 2)
            apart = Estimate(found[place].value - found[best].value, error)
        return apart.value <= CLEAR * apart.error

    return list(dict.fromkeys([0, *[place for place in ranked if may_win(place)][:FINALISTS]]))
