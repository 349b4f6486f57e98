r"""The least head before each state: the dynamic programme the other way, from the first stage on.

::

    E_0 + H ─────────────▶│◀── V behind ──▶      a stage may begin here only if both together stay within the target
              least over the stages before,
              each with what it needs there

What lies behind a state tells how many micro-batches its stages hold, but nothing of the stages before it does more
than add to the head; so the least head is a sum along the way, and every state off the way of all allocations within
the target is seen.
"""

import numpy as np

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.passes import Block, Pass
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import Layers
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import hop_between
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import added, finish_by_end
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.recomputation import IMPOSSIBLE


def prefix_tables(
    problem: ChainAllocation, grid: Grid, spans: Spans, clock: Clock, target: int, tables: Layers
) -> Array | None:
    """Least E_0 + H by kind, usage and boundary, shape (C, size, n + 1); `IMPOSSIBLE` before states off every way.

    ``tables`` are those of a run without a ceiling. None where first stages are forced: then positions matter.
    """
    if problem.first or problem.objective == "bottleneck":
        return None
    table = tables.levels[-1][0]
    found = np.full(table.time.shape, IMPOSSIBLE)
    found[:, :, 0] = np.where(table.time[:, :, 0] <= target, 0, IMPOSSIBLE)
    pass_ = Pass(problem, grid, spans, clock, target, None, None)
    hops = [
        [hop_between(problem, pass_.sight, c, behind, 0) for behind in range(problem.kinds)]
        for c in range(problem.kinds)
    ]
    for level, usages in reversed(list(enumerate(grid.levels))[1:]):
        clock.check()
        rows = pass_.rows(usages, range(problem.layers))
        for c, w in pass_.modes:
            able = rows.only(table.time[c, rows.usage, rows.start] + found[c, rows.usage, rows.start] <= target)
            for block in pass_.blocks(c, w, able, forced=False):
                for behind, hop in enumerate(hops[c]):
                    _advance(found, pass_, table.time[behind], hop, c, w, behind, level, block)
    return found


def _advance(
    found: Array, pass_: Pass, value: Array, hop: Array, c: int, w: int, behind: int, level: int, block: Block
) -> None:
    """Improve the heads of states on kind ``behind`` by the stages of a block before them."""
    problem, grid = pass_.problem, pass_.grid
    ahead = value[block.behind[:, None], block.ends]
    row, column = np.nonzero(block.inside & (ahead < IMPOSSIBLE))
    if not len(row):
        return
    ahead, end, after = ahead[row, column], block.ends[row, column], block.behind[row]
    usage, start = block.rows.usage[row], block.rows.start[row]
    leaves = grid.leaves[behind][after] if behind == c else np.ones_like(after)
    send: Array | int = 0
    into: Array | int = 0
    if pass_.sight.apart:
        send, into = problem.send[c, behind, leaves, end - 1], pass_.into[c, grid.leaves[c][usage], start]
    add = added(problem, pass_.spans, pass_.sight, (c, w), start, end, pass_.holds(w, level), send, into)
    head = found[c, usage, start] + np.where(start == 0, finish_by_end(problem, c, w)[end], 0)
    moved = head + add.work + hop[leaves, end]
    kept = add.open & (head + add.term <= pass_.target) & (moved + ahead <= pass_.target)
    np.minimum.at(found[behind], (after[kept], end[kept]), moved[kept])
