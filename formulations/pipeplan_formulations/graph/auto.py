"""The way that fits the problem: the dynamic programme where downsets are few, CP-SAT otherwise."""

from pipeplan_formulations.clock import OutOfTimeError
from pipeplan_formulations.graph import cpsat, exact
from pipeplan_formulations.graph.bracket import Bracket
from pipeplan_formulations.graph.downsets import all_downsets
from pipeplan_formulations.graph.problem import GraphPartition, Stages
from pipeplan_formulations.graph.walk import TooLargeError
from pipeplan_formulations.graph.warm import warm_start
from pipeplan_formulations.report import Limits, Progress, Report, Stop
from pipeplan_formulations.solvers import cpsat_version

FEW = 5_000
"""Downsets up to which the dynamic programme comes first."""


def solve(
    problem: GraphPartition, limits: Limits, hint: Stages | None = None, progress: Progress | None = None
) -> Report[Stages]:
    """Minimise T under (1) to (3); see `exact.solve` for the parameters.

    The report names the way that was taken. Where the dynamic programme finds too many stages, CP-SAT goes on from
    what it found.
    """
    bracket = Bracket(problem, limits, progress, hint)
    stop, name, version = Stop.GAP, exact.NAME, "1"
    try:
        warm_start(bracket)
        downsets = all_downsets(problem, FEW)
        try:
            exact.search(bracket, downsets)
        except TooLargeError:
            name = cpsat.NAME
            stop = cpsat.search(bracket)
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    if name == cpsat.NAME:
        version = cpsat_version()
    return bracket.report(stop, name, version)
