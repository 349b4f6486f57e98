"""Lower bound without a solver, and the start of every back end."""

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.report import Limits, Progress
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding.instance import Choice, Sharding, WeightedSharding


def open_bracket(
    problem: WeightedSharding, limits: Limits, on_progress: Progress | None, hint: Choice | None
) -> Bracket[Choice]:
    """Bracket with the lower bound; the hint is its incumbent if it is a solution."""
    bracket: Bracket[Choice] = Bracket(problem.evaluate, limits, on_progress, largest=problem.largest)
    low = lower_bound(problem.scalar())
    bracket.impossible = low is None
    bracket.raise_low(low or 0)
    counts = [len(costs) for costs in problem.problem.costs]
    if hint is not None and len(hint) == len(counts) and all(0 <= k < n for k, n in zip(hint, counts, strict=True)):
        bracket.offer(tuple(hint))
    return bracket


def lower_bound(problem: Sharding) -> int | None:
    """Lower bound on the costs of any choice, if they are a single sum; None if an operator has no possible signature.

    Let every edge give half of its costs to either operator. With signature k, an operator costs at least its own costs
    and half of the least possible entry of row k of each edge. The bound adds up the least of these over k.
    """
    rows = [costs[:, 0].astype(object) * 2 for costs in problem.costs]
    for u, v, costs in problem.edges:
        rows[u] += costs[..., 0].min(axis=1)
        rows[v] += costs[..., 0].min(axis=0)
    halves = [int(row.min()) for row in rows]
    return None if max(halves) >= UNLIMITED else -(-sum(halves) // 2)
