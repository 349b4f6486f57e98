"""Whether there are enough units at all: a look at memory that takes next to no time.

From the end of the chain, stage after stage takes as many layers as may fit at best::

    layers   0  1  2  3 │ 4  5  6 │ 7  8 │ 9        k = 4, 3, 2, 1 micro-batches in flight at least

with the least resident bytes of any width, everything recomputed that may be, and the fewest micro-batches that (1)
allows behind so many stages of the least width. A part of a span that fits fits as well, so to take the most each time
leads to the fewest stages that any allocation has.
"""

import numpy as np

from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.common.layer_tables import sums_before


def overcrowded(problem: ChainAllocation) -> bool:
    """True only if no allocation keeps memory (2), were all units of the kind with the most room."""
    n, narrow, wide = problem.layers, problem.widths[0], problem.widths[-1]
    sums = sums_before(problem.least_held)
    stays = [sums_before(own.min(axis=0)) for own in problem.resident]
    received = np.insert(problem.received, 0, 0)
    end = n
    for behind in range(0, int(problem.units.sum()), narrow):
        k = max(1, int(problem.in_flight(np.array(wide + behind), wide)))
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
