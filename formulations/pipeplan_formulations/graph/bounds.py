"""Bounds that need no solver: (5) and (6), and the stages that a group may lie in.

With a ceiling on every stage's load (`windows`), what a group needs, and the group itself, take so much work that so
many stages cannot hold it; what needs the group leaves so many stages for later.
"""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import GraphMode

Table = list[tuple[GraphMode, list[int | None], int]]
"""Each mode with what `work` says of it."""
CANDIDATES = 64
"""Most prices that are tried for a pool."""


def lower_bound(problem: GraphPartition) -> int:
    """The better of (5) and (6); see `problem`."""
    able = np.array([mode.possible.any(axis=0) for mode in problem.modes])
    if not able.any(axis=0).all():
        return 0
    alone = max(_alone(problem, g) for g in range(problem.groups))
    table = [(mode, *work(mode)) for mode in problem.modes]
    best = max(_priced(problem, table, prices) for prices in _prices(problem, table))
    return max(alone, -(-best.numerator // best.denominator))


def work(mode: GraphMode) -> tuple[list[int | None], int]:
    """The least that each group adds to the mode's heaviest line (None: it cannot run), and that line's share.

    One line for all groups, as the sums over a stage's groups are what a load is not below.
    """
    times = [np.where(mode.possible, line.time, UNLIMITED).min(axis=0) for line in mode.lines]
    able = [bool(column.any()) for column in mode.possible.T]
    heaviest = max(range(len(times)), key=lambda i: float(times[i][able].sum()) / mode.lines[i].share)
    return [int(t) if ok else None for t, ok in zip(times[heaviest], able, strict=True)], mode.lines[heaviest].share


def _alone(problem: GraphPartition, group: int) -> int:
    """(5)."""
    loads = []
    for mode in problem.modes:
        for variant in np.flatnonzero(mode.possible[:, group]):
            sums = (
                (int(line.time[variant, group]) + line.base * int(line.pays[group]), line.share) for line in mode.lines
            )
            loads.append(max(-(-total // share) for total, share in sums))
    return min(loads)


def _prices(problem: GraphPartition, table: Table) -> Iterator[list[int]]:
    """Prices worth trying: alike, one pool's alone, and where its devices are as good a buy for a group as others'."""
    pools = len(problem.pools)
    yield [1000] * pools
    for p in range(pools if pools > 1 else 0):
        yield [1000 * (q == p) for q in range(pools)]
        own = _cheapest([row for row in table if row[0].takes[p]], problem.groups)
        other = _cheapest([row for row in table if not row[0].takes[p]], problem.groups)
        ratios = sorted({b / a for a, b in zip(own, other, strict=True) if a and b})
        for ratio in ratios[:: max(1, len(ratios) // CANDIDATES)]:
            yield [round(1000 * float(ratio)) if q == p else 1000 for q in range(pools)]


def _cheapest(table: Table, groups: int) -> list[Fraction | None]:
    """The least device time that each group takes in some of the modes."""
    rows = [
        [Fraction(sum(mode.takes) * t, share) if t is not None else None for t in times] for mode, times, share in table
    ]
    return [min((cost for row in rows if (cost := row[g]) is not None), default=None) for g in range(groups)]


def _priced(problem: GraphPartition, table: Table, prices: list[int]) -> Fraction:
    """(6) for one price a pool, in whole numbers."""
    budget = sum(price * pool for price, pool in zip(prices, problem.pools, strict=True))
    if budget <= 0:
        return Fraction(0)
    costs = [sum(price * take for price, take in zip(prices, mode.takes, strict=True)) for mode, _, _ in table]
    rows = list(zip(table, costs, strict=True))
    total = Fraction(0)
    for g in range(problem.groups):
        total += min(Fraction(cost * t, share) for (_, times, share), cost in rows if (t := times[g]) is not None)
    return total / budget


def windows(problem: GraphPartition, ceiling: int, stages: int) -> tuple[list[int], list[int]]:
    """First and last stage of each group, of ``stages``; any stage where nothing is left."""
    table = [work(mode) for mode in problem.modes]
    choices = [[t / share for times, share in table if (t := times[g]) is not None] for g in range(problem.groups)]
    least = np.array([min(choice, default=0.0) for choice in choices])
    ancestors = [0] * problem.groups
    for g, mask in enumerate(problem.descendants):
        for other in _bits(mask):
            ancestors[other] |= 1 << g
    first = [max(0, _stages(least, mask | 1 << g, ceiling) - 1) for g, mask in enumerate(ancestors)]
    needed = [max(1, _stages(least, mask | 1 << g, ceiling)) for g, mask in enumerate(problem.descendants)]
    last = [stages - count for count in needed]
    if any(a > b for a, b in zip(first, last, strict=True)):
        return [0] * problem.groups, [stages - 1] * problem.groups
    return first, last


def _stages(least: np.ndarray[tuple[int, ...], np.dtype[np.float64]], mask: int, ceiling: int) -> int:
    """The least number of stages that hold so much work, with room for the inaccuracy of floating-point sums."""
    total = float(least[list(_bits(mask))].sum())
    return int(np.ceil(total * (1 - 1e-9) / max(ceiling, 1) - 1e-9))


def _bits(mask: int) -> list[int]:
    return [g for g in range(mask.bit_length()) if mask >> g & 1]
