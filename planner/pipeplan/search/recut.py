"""`recut`: the slices of a plan in unlike lengths, where that is faster.

Equal slices of a sequence take longer the more tokens they look back on, and in a pipeline all of them wait for the
longest. `pipeplan_formulations.slicing` cuts the sequence for as many equal stages, each of which takes the longest
time of any of the plan's. The plan with these slices is then priced and simulated like any other. Stages, devices,
micro-batches and the family stay.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeplan.core.cluster import DeviceKind, StageDevices
from pipeplan.core.errors import InputError
from pipeplan.core.job import Recompute
from pipeplan.core.model import Model
from pipeplan.costs.chain import Array
from pipeplan.costs.pricing import Prices
from pipeplan.costs.slices import cut, slice_of
from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.slicing import Slicing, solve

UNITS = 256
"""Most units of tokens into which a sequence is divided; slices are of whole units."""
LONGEST = 8
"""Slices of up to so many times the plan's are considered,"""
SECONDS = 5.0
"""and the programme may take so long."""


def recut(model: Model, space: Space, found: EvaluatedPlan) -> tuple[Space, EvaluatedPlan] | None:
    """Return the plan with slices of unlike lengths, and its space; None if none is known that is faster.

    Parameters
    ----------
    model : Model
        Of whole sequences.
    space : Space
        That of the plan.
    found : EvaluatedPlan
        A plan with equal slices. With teams it stays as it is: their ways are those of equal slices.
    """
    chain = found.candidate.chain
    if chain.slices == 1 or chain.split is not None or not found.candidate.objective.simulated:
        return None
    tokens = model.tokens
    unit = next(each for each in range(1, tokens + 1) if tokens % each == 0 and tokens // each <= UNITS)
    times = _times(model, space, found, tokens, unit)
    many = -(-found.candidate.micro_batches // max(found.candidate.replicas))
    report = solve(Slicing(times, found.candidate.depth, many), Limits(time=SECONDS))
    if report.solution is None:
        return None
    lengths = [unit * int(each) for each in np.diff(report.solution)]
    if lengths == [tokens // chain.slices] * chain.slices:
        return None
    own = _space(model, space, lengths)
    for candidate in own.candidates(chain.groups, chain.micro_batch):
        if candidate.family.name == found.candidate.family.name and candidate.fits(found.boundaries):
            again = evaluate(own.cluster, candidate, found.boundaries)
            return (own, again) if again.value < found.value else None
    return None


def _space(model: Model, space: Space, lengths: Sequence[int]) -> Space:
    return Space(cut(model, lengths), space.cluster, space.job, space.split)


def _times(model: Model, space: Space, found: EvaluatedPlan, tokens: int, unit: int) -> Array:
    """Return the longest time of any stage for each slice, in the form of `Slicing`."""
    n, chain = tokens // unit, found.candidate.chain
    times = np.full((n + 1, n + 1), UNLIMITED, np.int64)
    for length in range(1, min(n, LONGEST * -(-n // chain.slices)) + 1):
        ends = np.arange(length, n + 1)
        at = _of_length(model, space, found, length * unit)
        if at is not None:
            times[ends, ends - length] = np.max([first + step * unit * (ends - length) for first, step in at], axis=0)
    return times


def _of_length(model: Model, space: Space, found: EvaluatedPlan, length: int) -> list[tuple[int, float]] | None:
    """Return for each stage the time of a first slice of so many tokens, and what each token before it adds.

    Attention, a part w of the average time t, takes w (2 j + l) / T behind j of T tokens. None if the model has no
    costs for that length.
    """
    candidate, again = found.candidate, found.candidate.recompute(found.boundaries)
    prices = Prices(slice_of(model, length), space.cluster, space.job)
    full, rows = space.job.recompute is Recompute.FULL, []
    try:
        known = {kind.name: prices.costs(kind, candidate.chain.micro_batch) for kind in _kinds(candidate.chain.groups)}
    except InputError:
        return None
    for kind, (a, b), repeated in zip(_kinds(candidate.chain.groups), pairwise(found.boundaries), again, strict=True):
        first, step = 0.0, 0.0
        for i in range(a, b):
            cost, (forward, backward, *_) = known[kind.name].costs[i], known[kind.name].shares[i]
            forwards = cost.forward * (1 + (full or i in repeated))
            looks = forwards * float(forward) + cost.backward * float(backward)
            first += forwards + cost.backward - looks * (1 - length / model.tokens)
            step += 2 * looks / model.tokens
        rows.append((int(first), step))
    return rows


def _kinds(groups: StageDevices) -> list[DeviceKind]:
    return [group[0].kind for group in groups]
