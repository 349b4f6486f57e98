"""Exact method of the allocation problem: bounds by dynamic programming, then best-first search."""

from pipeplan_formulations.allocation.best_first.search import best_first
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.refinement import (
    Relaxation,
    is_small,
    narrowed,
    open_bracket,
    refine,
    relaxation,
)
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop

NAME = "exact"
GLANCE = 200
"""Prefixes that the search opens before intervals of e are split: enough for small problems."""
EVERY = 1_000
"""Prefixes of a problem that is not small that are opened where none is dropped for another one."""


def solve(
    problem: ChainAllocation,
    limits: Limits,
    hint: Allocation | None = None,
    on_progress: Progress | None = None,
    cutoff: int | None = None,
    known: int = 0,
) -> Report[Allocation]:
    """Minimise T under all inequalities, or the bottleneck.

    Parameters
    ----------
    problem : ChainAllocation
    limits : Limits
        ``workers`` and ``seed`` are not used.
    hint : allocation, optional
        First incumbent; ignored if it is not feasible.
    on_progress : callable, optional
        See `Progress`.
    cutoff : int, optional
        Values of at least this do not matter.
    known : int
        A bound that an earlier call on the same problem proved; the work that led to it is not repeated.

    Returns
    -------
    Report
        Within the time limit, a dynamic programme gives a bound and a first allocation. In small problems, and in those
        with cycles, searches of at most `GLANCE` prefixes follow. Then splitting intervals of e raises the bound, and
        the search continues without that limit.
    """
    bracket = open_bracket(problem, limits, on_progress, cutoff)
    bracket.raise_low(known)
    stop = Stop.OPTIMALITY
    try:
        if hint is not None and problem.feasible(hint):
            bracket.offer(hint)
        base = relaxation(problem, bracket)
        if base is None:
            bracket.impossible = not bracket.beyond
            return bracket.report(stop, NAME)
        if not problem.endless and not bracket.closed:
            _close(problem, bracket, base)
        stop = Stop.OPTIMALITY if bracket.proven else Stop.GAP
        if bracket.best is None and not bracket.beyond:  # the bounds on memory allowed a stage that does not fit
            stop = Stop.EXHAUSTED
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME)


def _close(problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation) -> None:
    """Close the bracket, or raise its lower bound as far as it goes."""
    small, decided = is_small(problem), False
    if problem.cycles:
        decided, base = _among_cycles(problem, bracket, base)
    elif small:
        best_first(problem, bracket, base, GLANCE)
    if not (decided or bracket.closed):
        refine(problem, bracket, base)
        decided = best_first(problem, bracket, base) and not bracket.closed
    if problem.cycles and decided and not bracket.proven:
        best_first(problem, bracket, base, None if small else EVERY, every=True)


def _among_cycles(problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation) -> tuple[bool, Relaxation]:
    """Search with ever closer horizons, which exclude ever more cycles; return if nothing is left, and the relaxation.

    Intervals of e are split behind a search that found nothing better.
    """
    while True:
        before = bracket.horizon
        decided = best_first(problem, bracket, base, GLANCE)
        if not (decided or bracket.closed) and bracket.horizon == before:
            refine(problem, bracket, base, closely=False)
            decided = best_first(problem, bracket, base, EVERY)
        if decided or bracket.closed or bracket.horizon == before:
            return decided, base
        base = narrowed(problem, bracket, base)
