r"""Prefix tables: the least head before each state, by a dynamic programme from the first stage on.

::

    E_0 + H ─────────────▶│◀── V behind ──▶      a stage may begin here only if the sum stays within the target
         least over the stages before

A state is the kind of a stage, the usage from it on, and the boundary where it begins. In-flight counts depend only on
the usage, and the stages before a state affect what lies behind it only through the head. So the least head is a least
sum over paths of states. States that no allocation within the target visits are excluded.
"""

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.passes import Block, Pass
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import ProgrammeTables
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import hop_between
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import added
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.span_options import IMPOSSIBLE


def prefix_tables(
    problem: ChainAllocation, grid: Grid, spans: Spans, clock: Clock, target: int, tables: ProgrammeTables
) -> Array | None:
    """Least E_0 + H by kind, usage and boundary, shape (C, size, n + 1); `IMPOSSIBLE` for states that are excluded.

    ``tables`` are the suffix tables of a run without a ceiling. Returns None with the objective 'bottleneck', or if
    first stages are forced, because then positions matter.
    """
    if problem.first or problem.endless:
        return None
    table = tables.levels[-1][0]
    # Heads before a first stage are 0, where an allocation within the target begins.
    found = np.full(table.time.shape, IMPOSSIBLE)
    found[:, :, 0] = np.where(table.time[:, :, 0] <= target, 0, IMPOSSIBLE)
    pass_ = Pass(problem, grid, spans, clock, target, None, None)
    hops = [
        [hop_between(problem, pass_.settings, c, behind, 0) for behind in range(problem.kinds)]
        for c in range(problem.kinds)
    ]
    # Usages with the most units first: a stage leads from its usage to one with fewer units.
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
    """Improve the heads of states on kind ``behind`` by the stages of a block, which end there."""
    problem, grid = pass_.problem, pass_.grid
    # One entry per stage of the block with a possible suffix: V behind it, its end, usage behind, usage and start.
    ahead = value[block.behind[:, None], block.ends]
    row, column = np.nonzero(block.inside & (ahead < IMPOSSIBLE))
    if not len(row):
        return
    ahead, end, after = ahead[row, column], block.ends[row, column], block.behind[row]
    usage, start = block.rows.usage[row], block.rows.start[row]
    leaves = grid.leaves[behind][after] if behind == c else np.ones_like(after)
    # f behind and ĝ before the stage, if its own term counts them.
    send: Array | int = 0
    into: Array | int = 0
    if pass_.settings.by_kind:
        send, into = problem.send[c, behind, leaves, end - 1], pass_.into[c, grid.leaves[c][usage], start]
    add = added(problem, pass_.spans, pass_.settings, (c, w), start, end, pass_.in_flight(w, level), send, into)
    # Head before the stage with E_0, and behind it; kept if its term, and the head with V, stay within the target.
    head = found[c, usage, start] + pass_.first_finish((c, w), start, end)
    moved = head + add.work + hop[leaves, end]
    kept = add.open & (head + add.term <= pass_.target) & (moved + ahead <= pass_.target)
    kept &= pass_.in_time((c, w), start, end, add.term, into)
    np.minimum.at(found[behind], (after[kept], end[kept]), moved[kept])
