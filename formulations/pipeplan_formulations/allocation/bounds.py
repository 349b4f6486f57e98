"""Bounds of the chain allocation problem without search: units that memory takes, and the least time on some units."""

import numpy as np

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.spans import best_before
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.common.recomputation import IMPOSSIBLE


def free_bounds(problem: ChainAllocation, grid: Grid) -> Array:
    """A bound on the units of each usage vector, shape (size,); `IMPOSSIBLE` on none.

    No allocation is faster than one micro-batch on the best kinds, nor than all of them on all units at once.
    """
    best = problem.forward + problem.backward
    before = int(best_before(problem)[-1])
    speed = (best.min(axis=0) / np.maximum(best, 1)).max(axis=1) * problem.unit
    bottleneck, many = problem.objective == "bottleneck", problem.micro_batches
    power = np.maximum(speed @ grid.coordinates, before * many / max(problem.largest, 1))
    step = before * many / np.maximum(power, 1e-9) * (1 - 1e-9)
    share = np.maximum((step / problem.divisor if bottleneck else step) - 1, 0).astype(np.int64)
    bounds = share if bottleneck else np.maximum(share, before)
    return np.where(grid.total == 0, IMPOSSIBLE, bounds)


def overcrowded(problem: ChainAllocation) -> bool:
    """Whether memory (2) excludes every allocation, were all units of the kind with the most room.

    From the end of the chain, stage after stage takes as many layers as may fit at best::

        layers   0  1  2  3 │ 4  5  6 │ 7  8 │ 9        k = 4, 3, 2, 1 micro-batches in flight at least

    with the least resident bytes of any width, everything recomputed that may be, and the fewest micro-batches that (1)
    allows behind so many stages of the least width. A part of a span that fits fits as well, so to take the most each
    time leads to the fewest stages that any allocation has.
    """
    n, narrow, widest = problem.layers, problem.widths[0], problem.modes[0][-1]
    sums = sums_before(problem.least_held)
    stays = [sums_before(own.min(axis=0)) for own in problem.resident]
    received = np.insert(problem.received, 0, 0)
    end = n
    for behind in range(0, int(problem.units.sum()), narrow):
        k = max(1, widest.flying(behind))
        workspace = np.maximum.accumulate(problem.workspace[end - 1 :: -1])[::-1]
        starts = [
            _first(own[end] - own[:end] + k * (sums[end] - sums[:end] + received[:end]) + workspace <= limit, end)
            for own, limit in zip(stays, problem.limit, strict=True)
        ]
        if min(starts) == end:
            return True
        end = min(starts)
        if end == 0:
            return False
    return True


def _first(fits: Array, end: int) -> int:
    """The first start from which the span fits; ``end`` if none does."""
    found = np.flatnonzero(fits)
    return int(found[0]) if len(found) else end
