"""Listing of all partitions, for problems with at most `MOST` of them: exact with path cuts, too.

::

    edges     0 1 2 6      low   41    a row for each partition that keeps memory and the allowed cuts and layers, and
    the
              0 1 3 6            38    least T that the other inequalities leave it, with least recomputation
              0 1 4 6            40
              …                  …
"""

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.partition import exact
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.objective import Sums, values
from pipeplan_formulations.partition.parts import PathCut
from pipeplan_formulations.partition.spans import NEVER, require_countable
from pipeplan_formulations.partition.tables import Boundaries

NAME = "listing"
MOST = 5_000
"""Most partitions that are listed: with more, the dynamic programmes are faster."""
AT_ONCE = 64
"""Spans of a stage whose recomputation is found between two looks at the clock."""


def few(problem: ChainPartition) -> bool:
    """Return True if the partitions of a problem are listed."""
    cuts = problem.layers - 1 if problem.cuts is None else int(problem.cuts.sum())
    return comb(cuts, problem.stages - 1) <= MOST


class PartitionList:
    """All partitions of a problem, each with a lower bound on its objective.

    Attributes
    ----------
    edges : array of int, shape (m, S + 1)
        Boundaries of the partitions that satisfy the memory limit, the allowed cuts and the allowed layers. If some are
        given, only these.
    low : array of int, shape (m,)
        The objective with the least recomputation, or a lower bound on that.

    Raises
    ------
    OutOfTimeError
        Once ``clock`` is over, if there is one: to find least recomputations may take long.
    """

    def __init__(self, problem: ChainPartition, clock: Clock | None = None, edges: Array | None = None) -> None:
        self._problem = problem
        stages = np.arange(problem.stages)
        cuts = np.ones(problem.layers - 1, np.bool_) if problem.cuts is None else problem.cuts
        edges = partitions(cuts, problem.stages, problem.layers) if edges is None else edges
        if problem.where is not None and not problem.where.all():
            lacking = np.insert(np.cumsum(~problem.where, axis=1), 0, 0, axis=1)
            edges = edges[(lacking[stages, edges[:, :-1]] == lacking[stages, edges[:, 1:]]).all(axis=1)]
        fits = problem.room.least(stages, edges[:, :-1], edges[:, 1:]) <= problem.limit
        self.edges = edges[fits.all(axis=1)]
        longer = np.zeros((len(self.edges), problem.stages), np.int64)
        for s in stages.tolist():
            spans, each = np.unique(self.edges[:, s] * (problem.layers + 1) + self.edges[:, s + 1], return_inverse=True)
            again = np.zeros(len(spans), np.int64)
            for low in range(0, len(spans), AT_ONCE):
                if clock is not None:
                    clock.check()
                a, b = np.divmod(spans[low : low + AT_ONCE], problem.layers + 1)
                again[low : low + AT_ONCE] = problem.recomputing.lower_bounds(s, a, b, np.ones(len(a), np.bool_))
            longer[:, s] = again[each]
        self._sums = Sums.of_many(problem, self.edges, longer)
        self.low = values(problem, self._sums) if len(self.edges) else np.zeros(0, np.int64)

    def boundaries(self, index: int) -> Boundaries:
        """The boundaries of a partition."""
        return tuple(self.edges[index].tolist())

    def add(self, path: PathCut) -> None:
        """Raise the bounds to the right side of a path cut for this path."""
        self.low = np.maximum(self.low, self._sums.length(path))

    def add_shares(self, shares: Array) -> None:
        """Raise the bounds to a sum over stages: ``shares[s, e, a]`` is that of stage s on the layers a … e − 1."""
        stages = np.arange(shares.shape[0])
        self.low = np.maximum(self.low, shares[stages, self.edges[:, 1:], self.edges[:, :-1]].sum(axis=1))


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    on_progress: Progress | None = None,
    cutoff: int | None = None,
) -> Report[Boundaries]:
    """Minimise T under all inequalities; see `exact.solve` for the parameters.

    With more than `MOST` partitions that back end answers.
    """
    if not few(problem):
        return exact.solve(problem, limits, hint, on_progress, cutoff)
    require_countable(problem)
    bracket = Bracket(problem.evaluate, limits, on_progress, cutoff)
    bracket.low = problem.lower_bound()
    stop = Stop.OPTIMALITY
    try:
        if hint is not None and problem.feasible(hint):
            bracket.offer(hint)
        every = PartitionList(problem, bracket.clock)
        bracket.impossible = not len(every.edges)
        # In the order of the bounds, until no partition can be better than the best.
        order = np.argsort(every.low, kind="stable").tolist()
        for index in order:
            bracket.raise_low(int(every.low[order[0]]))
            if every.low[index] >= bracket.horizon:
                break
            bracket.offer(every.boundaries(index))
            bracket.clock.check()
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME)


def below(shares: Array, horizon: int, most: int) -> Array | None:
    """Return the boundaries of every partition whose sums are all below ``horizon``, shape (m, S + 1).

    They are sought stage by stage: with the least that other stages may add, a sum often reaches the horizon early.
    None if more than ``most`` partitions begin below it.

    Parameters
    ----------
    shares : array of int, shape (sums, S, n + 1, n + 1)
        What each stage adds to each sum, by the layer behind its last one and its first one; `NEVER` where a stage may
        not lie.
    """
    count, stages, _, size = shares.shape
    # rest[s][sum, a]: the least of the stages from s on, on the layers from a on
    rest = np.full((stages + 1, count, size), NEVER)
    rest[-1, :, -1] = 0
    for s in reversed(range(stages)):
        rest[s] = np.minimum((shares[:, s] + rest[s + 1][:, :, None]).min(axis=1), NEVER)
    edges, sums = np.zeros((1, 1), np.int64), np.zeros((count, 1), np.int64)
    for s in range(stages):
        allowed = ((shares[:, s] < NEVER) & (rest[s + 1][:, :, None] < NEVER)).all(axis=0).T
        first = edges[:, -1]
        number, end = np.nonzero(allowed[first])
        sums = sums[:, number] + shares[:, s, end, first[number]]
        kept = (sums + rest[s + 1][:, end] < horizon).all(axis=0)
        edges, sums = np.column_stack([edges[number[kept]], end[kept]]), sums[:, kept]
        if len(edges) > most:
            return None
    return edges


def partitions(cuts: Flags, stages: int, layers: int) -> Array:
    """Boundaries of every partition with allowed cuts, shape (m, S + 1)."""
    return _partitions(tuple((np.flatnonzero(cuts) + 1).tolist()), stages, layers)


@lru_cache(maxsize=64)
def _partitions(ends: tuple[int, ...], stages: int, layers: int) -> Array:
    every = list(combinations(ends, stages - 1))
    inner = np.array(every, np.int64).reshape(len(every), stages - 1)
    edges = np.zeros((len(inner), stages + 1), np.int64)
    edges[:, 1:-1], edges[:, -1] = inner, layers
    return edges
