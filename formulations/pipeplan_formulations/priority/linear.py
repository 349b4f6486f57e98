"""Linear programme through PuLP: what to leave out of sums that may be interrupted.

    min T                                                         x_l: share of layer l that is lost
    T ≥ r_j + Σ_{l ≤ j} (p_l − s_l x_l) + q_j   for each layer j   (`_programme`: rows, duals λ_j)
    Σ_l b_l x_l ≤ budget · Σ_l b_l                                 (`_programme`: bytes, dual μ)
    0 ≤ x_l ≤ 2 · budget, 0.49                                     no layer loses much more than its part

The duals λ add up to 1. Layer l costs Σ_{j ≥ l} λ_j for each unit that its sum takes longer: of one more MB, so many
nanoseconds. Any λ gives a bound, which is found exactly in fractions (`_bound`), whatever the solver's accuracy.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.solvers import cbc_version, pulp
from pipeplan_formulations.priority.instance import Losses, Sums

NAME = "linear"
SIZE = 1e4
"""T in the solver's units."""
LEAST_TIME = 0.1
"""Least time limit of CBC, in seconds."""


def solve(
    problem: Sums, limits: Limits, hint: Losses | None = None, on_progress: Progress | None = None
) -> Report[Losses]:
    """Minimise T, with the prices of layers and of the budget."""
    bracket, clock = Bracket(problem.evaluate, limits, on_progress), Clock(limits)
    if hint is not None:
        bracket.offer(hint)
    unit = max(problem.end(problem.times) / SIZE, 1.0)
    lp, shares, rows = _programme(problem, unit)
    lp.solve(pulp().PULP_CBC_CMD(msg=False, timeLimit=max(clock.left, LEAST_TIME), threads=1))
    if lp.status != pulp().LpStatusOptimal:
        bracket.raise_low(_bound(problem, [Fraction(1)] + [Fraction(0)] * (problem.layers - 1)))
        return bracket.report(Stop.TIME if clock.over else Stop.ERROR, NAME, cbc_version())
    duals = [Fraction(max(rows[f"row{j}"].pi or 0.0, 0.0)) for j in range(problem.layers)]
    duals = [each / (sum(duals) or 1) for each in duals]
    prices = tuple(float(each) for each in reversed([*accumulate(reversed(duals))]))
    whole = 0 if problem.sizes is None else int(problem.sizes.sum())
    worth = -unit * (rows["bytes"].pi or 0.0) / whole if whole else 0.0
    bracket.offer(Losses(_within(problem, [share.varValue or 0.0 for share in shares]), prices, max(worth, 0.0)))
    bracket.raise_low(_bound(problem, duals))
    return bracket.report(Stop.EXHAUSTED, NAME, cbc_version())  # only what times are rounded by is left


def _programme(problem: Sums, unit: float) -> tuple[Any, list[Any], Any]:
    """Return the programme, its shares by layer, and its constraints by name."""
    module = pulp()
    lp = module.LpProblem("sums", module.LpMinimize)
    end = lp.add_variable("T", 0)
    shares = [lp.add_variable(f"x{layer}", 0, float(problem.most)) for layer in range(problem.layers)]
    lp.setObjective(module.LpAffineExpression({end: 1}))
    saved = [0] * problem.layers if problem.saved is None else problem.saved.tolist()
    sizes = [0] * problem.layers if problem.sizes is None else problem.sizes.tolist()
    for j, path in enumerate(problem.paths(problem.times).tolist()):
        less = {shares[layer]: saved[layer] / unit for layer in range(j + 1) if saved[layer]}
        lp += module.LpAffineExpression({end: 1, **less}) >= path / unit, f"row{j}"
    whole = sum(sizes) or 1
    parts = {share: size / whole for share, size in zip(shares, sizes, strict=True)}
    lp += module.LpAffineExpression(parts) <= float(problem.budget), "bytes"
    return lp, shares, lp.constraints


def _within(problem: Sums, shares: Sequence[float]) -> tuple[Fraction, ...]:
    """Return the shares as fractions that keep the budget exactly."""
    cut = [min(max(Fraction(share).limit_denominator(10**9), Fraction(0)), problem.most) for share in shares]
    sizes = [0] * problem.layers if problem.sizes is None else problem.sizes.tolist()
    lost = sum(size * share for size, share in zip(sizes, cut, strict=True))
    over = Fraction(1) if lost <= problem.may_lose else problem.may_lose / lost
    return tuple(share * over for share in cut)


def _bound(problem: Sums, duals: Sequence[Fraction]) -> int:
    """Return the least of the rows' mean by these weights, which T does not undercut, rounded up.

    The mean is least where bytes are lost that save most of it each: layers by Σ_{j ≥ l} λ_j s_l / b_l.
    """
    paths = problem.paths(problem.times).tolist()
    mean = sum((weight * path for weight, path in zip(duals, paths, strict=True)), Fraction(0))
    if problem.saved is None or problem.sizes is None:
        return -(-mean.numerator // mean.denominator)
    weights = reversed([*accumulate(reversed(duals))])
    rows = [
        (weight * saved, size)
        for weight, saved, size in zip(weights, problem.saved.tolist(), problem.sizes.tolist(), strict=True)
    ]
    mean -= sum((gain * problem.most for gain, size in rows if not size), Fraction(0))
    left = problem.may_lose
    for gain, size in sorted((row for row in rows if row[1]), key=lambda row: row[0] / row[1], reverse=True):
        share = min(problem.most, left / size)
        mean, left = mean - gain * share, left - size * share
    return -(-mean.numerator // mean.denominator)
