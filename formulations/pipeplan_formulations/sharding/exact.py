"""Exact back end: elimination, with tables of scalars first, and with Pareto sets where a cap binds.

1. Without caps, least sums need one number per cell. If this optimum satisfies the caps, it is the answer.
2. Where operators are too entangled for that, only those of degree 1 and 2 are eliminated. CP-SAT gets the core that is
   left, and elimination unwinds its answer.
3. With caps that bind, the Pareto set has one coordinate for the objective and one per cap, and the maxima that caps
   weigh. Choices that exceed a cap, or that are no better than the incumbent of a descent, are dropped on the way. Each
   table counts from its least entries, so that a partial choice is dropped as soon as the least costs of all other
   parts make it too large. If this is too entangled, CP-SAT gets the whole problem.

`Report.backend` says which of them happened.
"""

from dataclasses import replace

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import descent
from pipeplan_formulations.sharding.bounds import open_bracket
from pipeplan_formulations.sharding.by_rows import ByRows, search
from pipeplan_formulations.sharding.elimination import Elimination, TooLargeError
from pipeplan_formulations.sharding.frontier import Frontier, Frontiers, frontier
from pipeplan_formulations.sharding.instance import (
    LARGEST,
    Array,
    Cap,
    Choice,
    Edge,
    Sharding,
    WeightedSharding,
    possible,
)
from pipeplan_formulations.sharding.scalars import Scalars, ScalarTable

NAME = "exact"
STARTS = 3
"""Random starts of the descent that finds a first solution under caps."""


def solve(
    problem: WeightedSharding, limits: Limits, hint: Choice | None = None, on_progress: Progress | None = None
) -> Report[Choice]:
    """Minimise the weighted sum under the caps.

    Parameters
    ----------
    problem : WeightedSharding
    limits : Limits
        ``workers`` and ``seed`` are for CP-SAT, ``seed`` also for the first solution.
    hint : choice, optional
        A solution to start from; ignored if it is none.
    on_progress : callable, optional
        See `Progress`.

    Returns
    -------
    Report
        Its ``backend`` is 'exact', 'exact, core of n operators by cpsat', or 'exact, caps by cpsat'.
    """
    bracket, name, stop = open_bracket(problem, limits, on_progress, hint), NAME, Stop.OPTIMALITY
    try:
        if not bracket.closed:
            core, stop = _without_caps(problem, bracket)
            name += f", core of {core} operators by cpsat" if core else ""
        if not bracket.closed and problem.binding:
            descent.search(problem, bracket, STARTS)
            try:
                _with_caps(problem, bracket)
            except TooLargeError:
                name, stop = f"{NAME}, caps by cpsat", search(problem, bracket, CPSAT)
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, name)


def _without_caps(problem: WeightedSharding, bracket: Bracket[Choice]) -> tuple[int, Stop]:
    """Raise the bound to the least objective without caps, and offer its choice.

    Returns the number of operators that CP-SAT got, and why it stopped.
    """
    scalar = problem.scalar()
    try:
        _settle(bracket, frontier(scalar, bracket.clock))
    except TooLargeError:
        elimination = Elimination(scalar, Scalars(bracket.clock, maximum=False))
        elimination.run(degree=2)
        return len(elimination.operators), _by_core(elimination, bracket)
    return 0, Stop.OPTIMALITY


def _settle(bracket: Bracket[Choice], found: Frontier, shift: int = 0) -> None:
    """Take the first point of a frontier, whose first coordinate is the objective less ``shift``, as the optimum."""
    if len(found.points):
        bracket.offer(found.choice(0))
        bracket.raise_low(int(found.points[0, 0]) + shift)
    elif bracket.best is None:
        bracket.impossible = True
    else:  # nothing is better than the incumbent
        bracket.raise_low(bracket.ceiling)


def _by_core(elimination: Elimination[ScalarTable], bracket: Bracket[Choice]) -> Stop:
    """Let CP-SAT solve what is left, without caps: tables of single operators, of pairs, and constants."""
    left = sorted(elimination.operators)
    number = {v: i for i, v in enumerate(left)}
    costs: dict[int, Array] = {}
    edges, constant = [], 0
    for scope, table, _ in elimination.live.values():
        if len(scope) == 2:
            edges.append(Edge(number[scope[0]], number[scope[1]], _marked(table.values)))
        elif scope:
            [v] = scope
            costs[v] = np.minimum(costs.get(v, 0) + table.values, LARGEST)
        else:
            constant += int(table.values)
    if constant >= LARGEST:
        bracket.impossible = True
        return Stop.OPTIMALITY
    core = WeightedSharding(Sharding(tuple(_marked(costs[v]) for v in left), tuple(edges)), (1,))
    report = ByRows(CPSAT).solve(
        core,
        replace(bracket.limits, time=bracket.clock.left),
        on_progress=lambda _, bound: bracket.raise_low(constant + bound),
    )
    if report.solution is None:
        bracket.impossible = report.status is Status.INFEASIBLE
        return report.stop
    class_of = dict(zip(left, report.solution, strict=True))
    points = {
        factor: table.at(tuple(class_of[v] for v in scope))[0] for factor, (scope, table, _) in elimination.live.items()
    }
    bracket.offer(elimination.unwind(class_of, points))
    bracket.raise_low(constant + report.bound)
    return report.stop


def _marked(table: Array) -> Array:
    """Costs of one coordinate from a table of scalars."""
    return np.where(table < LARGEST, table, UNLIMITED)[..., None]


def _with_caps(problem: WeightedSharding, bracket: Bracket[Choice]) -> None:
    """Close the bracket by the Pareto set of the objective and the caps.

    Raises
    ------
    OutOfTimeError
    TooLargeError
    """
    base, caps = problem.problem, problem.binding
    tops = [cap.weights[base.sums :] for cap in caps]
    projected = base.project(
        np.array([problem.weights, *(cap.weights[: base.sums] for cap in caps)], np.int64),
        maxima=any(map(any, tops)),
    )
    reduced, least = _from_least(projected)
    unit = np.eye(projected.sums, dtype=np.int64).tolist()
    limits = [bracket.ceiling - 1, *(cap.limit for cap in caps)]
    rest = [[0] * projected.maxima, *(top[: projected.maxima] for top in tops)]
    own = [Cap((*row, *top), limit - low) for row, top, limit, low in zip(unit, rest, limits, least, strict=True)]
    _settle(bracket, Frontiers(reduced, bracket.clock, caps=own).at(), least[0])


def _from_least(problem: Sharding) -> tuple[Sharding, list[int]]:
    """The problem with every table's sums counted from their least ones, and the totals of these."""
    total = np.zeros(problem.sums, np.int64)

    def lowered(costs: Array) -> Array:
        mask, low = possible(costs), np.zeros(problem.coordinates, np.int64)
        if mask.any():
            low[: problem.sums] = costs[mask][:, : problem.sums].min(axis=0)
        total[:] += low[: problem.sums]
        return np.where(mask[..., None], costs - low, UNLIMITED)

    costs = tuple(map(lowered, problem.costs))
    edges = tuple(edge._replace(costs=lowered(edge.costs)) for edge in problem.edges)
    return Sharding(costs, edges, problem.maxima), total.tolist()
