"""What every number of units of every kind can reach at best: the dynamic programme's values, all of them."""

import numpy as np

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.floor import free_bounds
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import run
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.report import Limits


def frontier(problem: ChainAllocation, limits: Limits, up_to: int | None = None) -> Array:
    """Bounds on the objective by units used.

    Parameters
    ----------
    problem : ChainAllocation
    limits : Limits
        Only ``time`` counts. When it has passed the bounds are those that cost nothing.
    up_to : int, optional
        Values beyond are not told apart, which saves time.

    Returns
    -------
    array of int, shape (u_1 + 1, …, u_C + 1)
        Entry u: no allocation that uses exactly u units of each kind is better; `IMPOSSIBLE` if none fits, and
        ``up_to + 1`` if the best lies beyond that. For 'step' this is the least (3), for 'bottleneck' the optimum.
    """
    grid = Grid(problem)
    shape = [units + 1 for units in grid.units]
    limit = problem.largest if up_to is None else min(up_to, problem.largest)
    clock = Clock(limits)
    try:
        spans = Spans(problem, grid, limit, clock)
        tables = run(problem, grid, spans, clock, limit)
    except OutOfTimeError:
        return free_bounds(problem, grid).reshape(shape)
    values: Array = tables.whole.min(axis=0) if tables is not None else np.full(grid.size, IMPOSSIBLE)
    if limit < problem.largest:
        values = np.where((values == IMPOSSIBLE) & (grid.total > 0), limit + 1, values)
    return values.reshape(shape)
