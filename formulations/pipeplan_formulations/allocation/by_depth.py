"""Solving by rows: one model for each number of stages, and one report over them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeplan_formulations.allocation.depth_model import DepthModel, depth_model
from pipeplan_formulations.allocation.floor import open_bracket
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.problem import ChainAllocation
from pipeplan_formulations.report import Limits, Progress, Report, Stop
from pipeplan_formulations.scaling import scale_for


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
    bracket = open_bracket(problem, limits, progress)
    if hint is not None and problem.feasible(hint):
        bracket.offer(hint)
    scale = scale_for(problem.largest, bits)
    bounds: list[int] = []
    stop = Stop.OPTIMALITY
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
    bracket.impossible = stop is Stop.OPTIMALITY and not bounds
    if bounds or bracket.best is not None:
        bracket.raise_low(min([*bounds, bracket.ceiling]))
    found = bracket.best is not None
    return bracket.report(Stop.GAP if found and stop is Stop.OPTIMALITY else stop, name, version)
