"""Block coordinate descent: give one operator its best signature while all others keep theirs, until nothing improves.

This is the search of AutoDDL (Chen et al., arXiv 2301.06813), with several starts and without any proof. The bound is
that of `bounds.lower_bound`.
"""

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.sharding.bounds import open_bracket
from pipeplan_formulations.sharding.instance import Array, Choice, WeightedSharding, possible

NAME = "descent"
STARTS = 30
"""Number of random starts."""


def solve(
    problem: WeightedSharding, limits: Limits, hint: Choice | None = None, on_progress: Progress | None = None
) -> Report[Choice]:
    """Minimise the weighted sum under the caps from the hint and random starts; parameters as for `exact.solve`."""
    bracket = open_bracket(problem, limits, on_progress, hint)
    stop = Stop.EXHAUSTED
    try:
        search(problem, bracket, STARTS)
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME)


def search(problem: WeightedSharding, bracket: Bracket[Choice], starts: int) -> None:
    """Descend from the incumbent and from random starts; offer every end.

    Raises
    ------
    OutOfTimeError
    """
    random = np.random.default_rng(bracket.limits.seed)
    descent = _Descent(problem)
    first = [] if bracket.best is None else [list(bracket.best)]
    for choice in first + [random.integers(descent.counts).tolist() for _ in range(starts)]:
        while not bracket.closed and descent.sweep(choice):
            bracket.clock.check()
        bracket.offer(tuple(choice))


class _Descent:
    """Tables of a problem by operator."""

    def __init__(self, problem: WeightedSharding) -> None:
        self._sums = problem.problem.sums
        self._problem = problem
        self.counts = [len(costs) for costs in problem.problem.costs]
        self._edges: list[list[tuple[int, int, Array]]] = [[] for _ in self.counts]
        for number, (u, v, costs) in enumerate(problem.problem.edges):
            self._edges[u].append((number, v, costs))
            self._edges[v].append((number, u, costs.transpose(1, 0, 2)))

    def sweep(self, choice: list[int]) -> bool:
        """Improve the choice in place, operator by operator; return True if it has changed."""
        parts = self._problem.problem.parts(choice)
        changed = False
        for v, costs in enumerate(self._problem.problem.costs):
            own = [v, *(len(self.counts) + number for number, _, _ in self._edges[v])]
            rest = np.delete(parts, own, axis=0)
            tables = np.stack([costs, *(table[:, choice[u]] for _, u, table in self._edges[v])])  # (parts, K, D)
            rank = self._rank(rest, tables)
            best = min(range(len(rank)), key=rank.__getitem__)
            if rank[best] < rank[choice[v]]:
                choice[v], changed = best, True
                parts[own] = tables[:, best]
        return changed

    def _rank(self, rest: Array, tables: Array) -> list[tuple[int, int, int]]:
        """For each signature: impossible parts, excess over all caps, objective."""
        bad = (~possible(tables)).sum(axis=0)
        plain = np.where(possible(tables)[..., None], tables, 0)
        others = rest[possible(rest)]
        sums = plain[..., : self._sums].sum(axis=0) + others[:, : self._sums].sum(axis=0)
        tops = np.maximum(plain[..., self._sums :].max(axis=0), others[:, self._sums :].max(axis=0, initial=0))
        total = np.concatenate([sums, tops], axis=1)
        excess = np.zeros(len(total), np.int64)
        for weights, limit in self._problem.binding:
            excess += np.maximum(total @ np.array(weights, np.int64) - limit, 0)
        value = sums @ np.array(self._problem.weights, np.int64)
        return list(zip(bad.tolist(), excess.tolist(), value.tolist(), strict=True))
