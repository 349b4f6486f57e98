"""Lower bounds without a solver: lone group and priced devices; the range of stages in which each group can lie.

`windows`: with a ceiling on every stage's load, the work of a group and its ancestors needs a number of places, which
gives the group's first place. The work of the group and its descendants gives its last place.
"""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import GraphMode

Table = list[tuple[GraphMode, list[int | None], int]]
"""Each mode with the result of `work`."""
CANDIDATES = 64
"""Largest number of prices tried for a pool."""
MARGIN = 1e-9
"""Allowance for floating-point sums."""


def lower_bound(problem: GraphPartition) -> int:
    """Lower bound on T: the larger of the lone-group and priced-devices bounds."""
    able = np.array([mode.possible.any(axis=0) for mode in problem.modes])
    if not able.any(axis=0).all():
        return 0
    alone = max(_alone(problem, g) for g in range(problem.groups))
    table = [(mode, *work(mode)) for mode in problem.modes]
    best = max(_priced(problem, table, prices) for prices in _prices(problem, table))
    return max(alone, -(-best.numerator // best.denominator))


def work(mode: GraphMode) -> tuple[list[int | None], int]:
    """Least time of each group on the mode's heaviest line (None: it cannot run in this mode), and that line's share.

    One line serves all groups, since a load is at least the sum over a stage's groups on any one line.
    """
    times = [np.where(mode.possible, line.time, UNLIMITED).min(axis=0) for line in mode.lines]
    able = [bool(column.any()) for column in mode.possible.T]
    heaviest = max(range(len(times)), key=lambda i: float(times[i][able].sum()) / mode.lines[i].share)
    return [int(t) if ok else None for t, ok in zip(times[heaviest], able, strict=True)], mode.lines[heaviest].share


def _alone(problem: GraphPartition, group: int) -> int:
    """The lone-group bound for one group."""
    loads = []
    for mode in problem.modes:
        for variant in np.flatnonzero(mode.possible[:, group]):
            sums = (
                (int(line.time[variant, group]) + line.base * int(line.pays[group]), line.share) for line in mode.lines
            )
            loads.append(max(-(-total // share) for total, share in sums))
    return min(loads)


def _prices(problem: GraphPartition, table: Table) -> Iterator[list[int]]:
    """Prices to try: equal ones, one pool alone, and those at which two pools cost the same for some group."""
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
    """Least device time of each group over the modes of a table."""
    rows = [
        [Fraction(sum(mode.takes) * t, share) if t is not None else None for t in times] for mode, times, share in table
    ]
    return [min((cost for row in rows if (cost := row[g]) is not None), default=None) for g in range(groups)]


def _priced(problem: GraphPartition, table: Table, prices: list[int]) -> Fraction:
    """The priced-devices bound for one integer price per pool."""
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
    """First and last possible place of each group, of ``stages``; all places if some group has none left.

    A stage of flow r takes r places, of which its own is the last, and does share / r times the ceiling per place.
    """
    own = max(mode.flow for mode in problem.modes) - 1
    least = _least_work(problem)
    least[np.isinf(least)] = 0
    ancestors = [0] * problem.groups
    for g, mask in enumerate(problem.descendants):
        for other in _bits(mask):
            ancestors[other] |= 1 << g
    first = [max(0, _stages(least, mask | 1 << g, ceiling) - 1) for g, mask in enumerate(ancestors)]
    needed = [max(1, _stages(least, mask | 1 << g, ceiling) - own) for g, mask in enumerate(problem.descendants)]
    last = [stages - count for count in needed]
    if any(a > b for a, b in zip(first, last, strict=True)):
        return [0] * problem.groups, [stages - 1] * problem.groups
    return first, last


def least_places(problem: GraphPartition, ceiling: int, places: int) -> NDArray[np.float64]:
    """Places that each group takes at least, whatever its mode, with `MARGIN`; one too many if it fits none.

    A stage of flow r takes r places.
    """
    least: NDArray[np.float64] = np.minimum(_least_work(problem) * (1 - MARGIN) / max(ceiling, 1), places + 1)
    return least


def _least_work(problem: GraphPartition) -> NDArray[np.float64]:
    """Load that each group adds to a stage of one place, at least; infinite where no mode can run it."""
    rows = [
        [np.inf if t is None else mode.flow * t / share for t in times]
        for mode in problem.modes
        for times, share in (work(mode),)
    ]
    least: NDArray[np.float64] = np.array(rows).min(axis=0)
    return least


def _stages(least: NDArray[np.float64], mask: int, ceiling: int) -> int:
    """Least number of stages for the work of the groups in ``mask``."""
    total = float(least[list(_bits(mask))].sum())
    return int(np.ceil(total * (1 - MARGIN) / max(ceiling, 1) - MARGIN))


def _bits(mask: int) -> list[int]:
    return [g for g in range(mask.bit_length()) if mask >> g & 1]
