"""Lower bounds (5) and (6), which cost nothing."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from pipeplan_formulations.graph.mode import Mode
from pipeplan_formulations.graph.problem import GraphPartition

CANDIDATES = 64
"""Most prices that are tried for a pool."""


def lower_bound(problem: GraphPartition) -> int:
    """The better of (5) and (6); see `problem`."""
    least = least_loads(problem)
    if np.isinf(least).all(axis=0).any():
        return 0
    alone = max(_alone(problem, g) for g in range(problem.groups))
    best = Fraction(0)
    for prices in _prices(problem, least):
        best = max(best, _priced(problem, prices))
    return max(alone, -(-best.numerator // best.denominator))


def least_loads(problem: GraphPartition) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The least that each group adds to a load, shape (modes, groups); inf where it cannot run."""
    return np.array([_least(mode) for mode in problem.modes])


def _least(mode: Mode) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rows = [np.where(mode.possible, line.time / line.share, np.inf).min(axis=0) for line in mode.lines]
    least: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.max(rows, axis=0)
    return least


def _alone(problem: GraphPartition, group: int) -> int:
    """(5)."""
    loads = []
    for mode in problem.modes:
        for variant in np.flatnonzero(mode.possible[:, group]):
            sums = ((int(line.time[variant, group]) + line.base, line.share) for line in mode.lines)
            loads.append(max(-(-total // share) for total, share in sums))
    return min(loads)


def _prices(problem: GraphPartition, least: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Iterator[list[int]]:
    """Prices worth trying: alike, and where one pool's devices are as good a buy as another's for some group."""
    pools = len(problem.pools)
    yield [1000] * pools
    if pools > 1:
        yield from ([1000 * (q == p) for q in range(pools)] for p in range(pools))
    for p in range(1, pools):
        ours = [m for m, mode in enumerate(problem.modes) if mode.takes[p] and sum(mode.takes) == mode.takes[p]]
        others = [m for m, mode in enumerate(problem.modes) if not mode.takes[p]]
        if not ours or not others:
            continue
        takes = np.array([sum(mode.takes) for mode in problem.modes])[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = least * takes
            ratios = cost[others].min(axis=0) / cost[ours].min(axis=0)
        ratios = np.unique(ratios[np.isfinite(ratios)])
        for ratio in ratios[:: max(1, len(ratios) // CANDIDATES)]:
            prices = [1000] * pools
            prices[p] = round(1000 * float(ratio))
            yield prices


def _priced(problem: GraphPartition, prices: list[int]) -> Fraction:
    """(6) for one price a pool, in whole numbers."""
    budget = sum(price * pool for price, pool in zip(prices, problem.pools, strict=True))
    if budget <= 0:
        return Fraction(0)
    rows = []
    for mode in problem.modes:
        cost = sum(price * take for price, take in zip(prices, mode.takes, strict=True))
        line = max(mode.lines, key=lambda line: int(line.time.sum()) / line.share)
        rows.append(
            [Fraction(cost * int(t), line.share) for t in np.where(mode.possible, line.time, 2**62).min(axis=0)]
        )
    return sum((min(row[g] for row in rows) for g in range(problem.groups)), Fraction(0)) / budget
