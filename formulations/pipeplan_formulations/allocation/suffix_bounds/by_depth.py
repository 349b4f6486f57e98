"""Solving by rows: one model for each number of stages, and one report over them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeplan_formulations.allocation.best_first.bracket import Bracket
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.depth_model import DepthModel, depth_model
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import scale_for


@dataclass(frozen=True)
class Outcome:
    """What a solver said of one depth.

    ``point`` is None if it has none, ``bound``, in time, if there is no allocation of this depth at all.
    """

    point: list[float] | None
    bound: int | None
    stop: Stop


Run = Callable[[DepthModel, Limits], Outcome]


def solve_by_depth(
    problem: ChainAllocation,
    limits: Limits,
    hint: Allocation | None,
    progress: Progress | None,
    bits: int,
    name: str,
    version: str,
    run: Run,
) -> Report[Allocation]:
    """Let ``run`` solve every depth in turn; T need not exceed the incumbent. ``hint`` is the first one if feasible."""
    bracket = Bracket(problem, limits, progress)
    scale = scale_for(problem.largest, bits)
    bounds: list[int] = []
    stop = Stop.OPTIMALITY
    if hint is not None and problem.feasible(hint):
        bracket.offer(hint)
    fewest = max(1, len(problem.first) + len(problem.last))
    for depth in range(fewest, min(problem.layers, int(problem.units.sum()) // problem.widths[0]) + 1):
        best = bracket.high if bracket.high is not None else problem.largest
        model = depth_model(problem, depth, scale, -(-best // scale.unit))
        outcome = run(model, replace(limits, time=bracket.clock.left))
        if outcome.point is not None:
            stages = model.read(outcome.point)
            if problem.feasible(stages):
                bracket.offer(stages)
        if outcome.bound is not None:
            bounds.append(outcome.bound)
        if outcome.stop not in (Stop.OPTIMALITY, Stop.GAP):
            stop = outcome.stop
            bounds.append(0)
            break
    if bracket.best is None:
        status = Status.INFEASIBLE if stop is Stop.OPTIMALITY and not bounds else Status.UNKNOWN
        return Report(status, stop, None, min(bounds, default=0), bracket.clock.wall, name, version, limits.seed, None)
    assert bracket.high is not None
    bracket.raise_low(min([*bounds, bracket.high]))
    closed = bracket.low == bracket.high
    status, stop = (
        (Status.OPTIMAL, Stop.OPTIMALITY)
        if closed
        else (Status.FEASIBLE, Stop.GAP if stop is Stop.OPTIMALITY else stop)
    )
    return Report(status, stop, bracket.high, bracket.low, bracket.clock.wall, name, version, limits.seed, bracket.best)
