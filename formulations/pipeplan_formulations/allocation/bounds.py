"""Closed-form bounds of the chain allocation problem: least time on some units, and a memory test."""

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.spans import least_work_before
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.span_options import IMPOSSIBLE


def free_bounds(problem: ChainAllocation, grid: Grid) -> Array:
    """A lower bound on the objective for each usage vector, shape (size,); `IMPOSSIBLE` for no units.

    No allocation is faster than one micro-batch on the best kinds, nor than all micro-batches on all units at once.
    """
    work = problem.forward + problem.backward
    # Work of one micro-batch with every layer on its fastest kind, and its round trip.
    before, trip = int(sums_before(work.min(axis=0))[-1]), int(least_work_before(problem, "trip")[-1])
    # Speed of one unit of each kind, relative to the fastest kind of the layer that suits it best: shape (C,).
    speed = (work.min(axis=0) / np.maximum(work, 1)).max(axis=1) * problem.unit
    bottleneck, many = problem.endless, problem.micro_batches
    # Of the kinds that take units of a pool, the fastest one counts: shape (P,).
    by_pool = np.array([(speed / problem.takes)[problem.pool == pool].max() for pool in range(len(problem.units))])
    # Speed of all units of each usage vector; its lower end keeps the quotient below within 64 bits.
    power = np.maximum(by_pool @ grid.coordinates, before * many / max(problem.largest, 1))
    # Time of all micro-batches at that speed, rounded down by more than a double can be wrong.
    step = before * many / np.maximum(power, 1e-9) * (1 - 1e-9)
    share = np.maximum((step / problem.divisor if bottleneck else step) - 1, 0).astype(np.int64)
    bounds = share if bottleneck else np.maximum(share, trip)
    return np.where(grid.total == 0, IMPOSSIBLE, bounds)


def memory_excludes_all(problem: ChainAllocation) -> bool:
    """True if memory excludes every allocation, even if all units were of the kind with the most memory.

    From the end of the chain, each stage takes as many layers as may fit in the best case::

        layers   0  1  2  3 │ 4  5  6 │ 7  8 │ 9        k = 4, 3, 2, 1 micro-batches in flight at least

    The best case has the least resident bytes of any width, and recomputes every layer that may be recomputed. It has
    the fewest micro-batches in flight that the in-flight rule allows in front of that number of stages of the least
    width. A part of a span that fits also fits, so taking the most layers each time gives the fewest stages that any
    allocation can have.
    """
    n, narrow, widest = problem.layers, problem.widths[0], problem.modes[0][-1]
    # Prefix sums of the fewest bytes per micro-batch in flight, and of the least resident bytes by kind.
    held = sums_before(problem.least_held)
    stays = [sums_before(own.min(axis=0)) for own in problem.resident]
    received = problem.received_at
    end = n
    for behind in range(0, problem.most_flow, narrow):
        k = max(1, widest.flying(behind))
        # workspace[c, a]: the largest workspace of the layers a … end − 1 on kind c.
        workspace = np.maximum.accumulate(problem.workspace[:, end - 1 :: -1], axis=1)[:, ::-1]
        # For each kind, the first layer of the longest stage that ends at ``end`` and may fit.
        starts = [
            _first(own[end] - own[:end] + k * (sums[end] - sums[:end] + into[:end]) + peak <= limit, end)
            for own, sums, into, peak, limit in zip(stays, held, received, workspace, problem.limit, strict=True)
        ]
        if min(starts) == end:
            return True
        end = min(starts)
        if end == 0:
            return False
    return True


def _first(fits: Array, end: int) -> int:
    """The first start whose span fits; ``end`` if none does."""
    found = np.flatnonzero(fits)
    return int(found[0]) if len(found) else end
