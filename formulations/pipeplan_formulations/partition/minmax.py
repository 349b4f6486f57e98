"""Dynamic programme for the objective 'bottleneck': the classical min-max recursion over (stage, boundary).

::

    best[s + 1][b] = min over a < b of max(best[s][a], load of stage s on layers a … b − 1)

It takes O(n² S) time at worst. Spans whose load exceeds a target are left out, and the target doubles until some
partition stays within it.
"""

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.spans import NEVER, spans
from pipeplan_formulations.partition.tables import Boundaries
from pipeplan_formulations.partition.windows import Windows

NEAR = 4
"""If the horizon is at most this multiple of the target, it becomes the target."""


def solve_minmax(problem: ChainPartition, room: Windows, bracket: Bracket[Boundaries]) -> None:
    """Close the bracket: find the optimum, or prove the cutoff. Some partition must satisfy the memory limit."""
    target = max(1, bracket.low)
    while not (bracket.proven or bracket.beyond):
        if bracket.horizon < UNLIMITED and bracket.horizon <= NEAR * target:
            target = max(bracket.horizon - 1, bracket.low)
        value = _within(problem, room, target, bracket)
        bracket.raise_low(min(value, target + 1))
        target *= 2


def _within(problem: ChainPartition, room: Windows, target: int, bracket: Bracket[Boundaries]) -> int:
    """The optimum if it is at most ``target``, offered to the bracket; else ``target`` + 1."""
    n, stages = problem.layers, problem.stages
    best = np.full((stages + 1, n + 1), NEVER)
    origin = np.zeros((stages + 1, n + 1), np.int64)
    best[0, 0] = 0
    for s in range(stages):
        bracket.clock.check()
        table = spans(problem, s, np.flatnonzero(best[s] <= target), room, room.open[s + 1], target)
        if not len(table.starts):
            return target + 1
        # For each end, the start of least value: sort entries by (end, value) and take the first of each end.
        value = np.maximum(best[s, table.starts][:, None], table.work)
        ends = table.ends.ravel()
        order = np.lexsort((value.ravel(), ends))
        ends_first, first = np.unique(ends[order], return_index=True)
        chosen = order[first]
        best[s + 1, ends_first] = value.ravel()[chosen]
        origin[s + 1, ends_first] = table.starts[chosen // table.ends.shape[1]]
    if best[stages, n] > target:
        return target + 1
    # Follow the stored starts back from the last boundary.
    boundaries = [n]
    for s in range(stages, 0, -1):
        boundaries.append(int(origin[s, boundaries[-1]]))
    bracket.offer(tuple(reversed(boundaries)))
    return int(best[stages, n])
