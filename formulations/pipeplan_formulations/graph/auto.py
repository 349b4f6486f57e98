"""Automatic back end: the dynamic programme if downsets are few, CP-SAT first if they are many.

Where the choices of variants are too many to list (many unlike groups under a memory limit), the programme divides
variants where that is possible, and CP-SAT continues from there or from the first plans along orders.
"""

from contextlib import suppress
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.graph import exact
from pipeplan_formulations.graph.by_places import relaxed
from pipeplan_formulations.graph.by_rows import search, search_shape
from pipeplan_formulations.graph.downsets import all_downsets
from pipeplan_formulations.graph.fractions import divisible
from pipeplan_formulations.graph.fronts import TooLargeError
from pipeplan_formulations.graph.instance import GraphPartition, Stages
from pipeplan_formulations.graph.relayed import raise_by_borders
from pipeplan_formulations.graph.warm import DOWNSETS, open_bracket, solve_divided, warm_start

SHARE = 1 / 3
"""Share of the time limit for CP-SAT before the dynamic programme runs on many downsets."""
QUARTER = 1 / 4
"""Largest share of the time left for the relaxation by places, and for the modes of the first plan."""
HALF = 1 / 2
"""Most of the time left for variants in fractions."""
MOST = 3 / 4
"""Most of the time left for the bound by all downsets where they are many."""


def solve(
    problem: GraphPartition, limits: Limits, hint: Stages | None = None, on_progress: Progress | None = None
) -> Report[Stages]:
    """Minimise T under order, pools and memory limit; see `exact.solve` for the parameters.

    The report names the back end that ran last. Each one continues from the incumbent and bound of the one before it.
    """
    bracket = open_bracket(problem, limits, on_progress, hint)
    stop, backend = Stop.GAP, exact.NAME
    try:
        downsets = all_downsets(problem, exact.MOST)
        few = downsets is not None and len(downsets) <= DOWNSETS
        listed = warm_start(problem, bracket, many=not few)
        if not listed and not bracket.closed and bracket.best is not None and downsets and divisible(problem):
            with suppress(OutOfTimeError, TooLargeError):  # the bounds by places are next
                solve_divided(problem, bracket, downsets, bracket.clock.left * HALF)
        if downsets is None and problem.route == "relay" and bracket.best is not None and not bracket.closed:
            with suppress(OutOfTimeError):  # the solver continues from the bound
                raise_by_borders(problem, bracket, Clock(replace(limits, time=bracket.clock.left * MOST)))
        if not listed and not bracket.closed:
            bracket.raise_low(relaxed(problem, bracket.ceiling, bracket.clock.left * QUARTER))
            if len(problem.modes) > 1 and bracket.best is not None:
                shape = [stage.mode for stage in bracket.best]
                if search_shape(problem, bracket, CPSAT, bracket.clock.left * QUARTER, shape) is Stop.INTERRUPT:
                    raise KeyboardInterrupt
        if (not listed or (downsets is not None and not few)) and not bracket.closed:
            backend = CPSAT.name
            stop = search(problem, bracket, CPSAT, limits.time * SHARE if listed else None)
        if listed and not bracket.closed and stop is not Stop.INTERRUPT:
            backend = exact.NAME
            try:
                exact.search(problem, bracket, downsets)
            except TooLargeError:
                backend = CPSAT.name
                stop = search(problem, bracket, CPSAT)
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, backend, CPSAT.version() if backend == CPSAT.name else "1")
