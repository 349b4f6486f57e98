"""Exact method of the allocation problem: bounds by dynamic programming, then best-first search."""

from pipeplan_formulations.allocation.best_first.search import BestFirst
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.refinement import (
    Refinement,
    Relaxation,
    is_small,
    narrowed,
    open_bracket,
    relaxation,
)
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
    """Minimise T under all inequalities, or the bottleneck; see `Solver` for the parameters."""
    return Solver(problem, hint, on_progress, cutoff, known).run(limits)


class Solver:
    """Minimises T under all inequalities, or the bottleneck; where its time was over, it goes on when it is run again.

    A dynamic programme gives a bound and a first allocation. In small problems searches of at most `GLANCE` prefixes
    follow. Then splitting intervals of e raises the bound, and the search continues without that limit.

    Parameters
    ----------
    problem : ChainAllocation
    hint : allocation, optional
        First incumbent; ignored if it is not feasible.
    on_progress : callable, optional
        See `Progress`.
    cutoff : int, optional
        Values of at least this do not matter.
    known : int
        A bound that an earlier solver of the same problem proved; the work that led to it is not repeated.
    """

    def __init__(
        self,
        problem: ChainAllocation,
        hint: Allocation | None = None,
        on_progress: Progress | None = None,
        cutoff: int | None = None,
        known: int = 0,
    ) -> None:
        self._problem, self._hint = problem, hint
        self._bracket = open_bracket(problem, Limits(), on_progress, cutoff)
        self._bracket.raise_low(known)
        self._base: Relaxation | None = None

    @property
    def begun(self) -> bool:
        """True once the programme has run: from then on another run goes on."""
        return self._base is not None

    @property
    def cutoff(self) -> int | None:
        """Values of at least this do not matter."""
        return self._bracket.cutoff

    def run(self, limits: Limits, cutoff: int | None = None) -> Report[Allocation]:
        """Solve, or go on, within limits of which ``workers`` and ``seed`` are not used, below a cutoff no higher."""
        problem, bracket, stop = self._problem, self._bracket, Stop.OPTIMALITY
        bracket.resume(limits, cutoff)
        try:
            if self._base is None:
                if self._hint is not None and problem.feasible(self._hint):
                    bracket.offer(self._hint)
                base = relaxation(problem, bracket)
                if base is None:
                    bracket.impossible = not bracket.beyond
                    return bracket.report(stop, NAME)
                self._begin(base)
            if not problem.endless and not bracket.closed:
                self._close()
            stop = Stop.OPTIMALITY if bracket.proven else Stop.GAP
            if bracket.best is None and not bracket.beyond:  # the bounds on memory allowed a stage that does not fit
                stop = Stop.EXHAUSTED
        except OutOfTimeError:
            stop = Stop.TIME
        except KeyboardInterrupt:
            stop = Stop.INTERRUPT
        return bracket.report(stop, NAME)

    def _begin(self, base: Relaxation) -> None:
        """Begin with a relaxation for what lies below the horizon."""
        self._base, self._horizon = base, self._bracket.horizon
        self._refinement: Refinement | None = None
        self._searches: dict[bool, BestFirst] = {}

    def _search(self, most: int | None = None, every: bool = False) -> bool:
        """Search among prefixes; ``every``: without dominance."""
        assert self._base is not None
        if every not in self._searches:
            self._searches[every] = BestFirst(self._problem, self._bracket, self._base, every)
        return self._searches[every].run(most)

    def _refine(self, closely: bool = True) -> None:
        """Split intervals of e, and boxes."""
        assert self._base is not None
        self._refinement = self._refinement or Refinement(self._problem, self._bracket, self._base)
        self._refinement.run(closely)

    def _close(self) -> None:
        """Close the bracket, or raise its lower bound as far as it goes."""
        problem, bracket, decided = self._problem, self._bracket, False
        small = is_small(problem)
        if problem.cycles:
            decided = self._among_cycles()
        elif small:
            self._search(GLANCE)
        if not (decided or bracket.closed):
            self._refine()
            decided = self._search() and not bracket.closed
        if problem.cycles and decided and not (bracket.proven or bracket.beyond):
            self._search(None if small else EVERY, every=True)

    def _among_cycles(self) -> bool:
        """Search with ever closer horizons, which exclude ever more cycles; return if nothing is left.

        Intervals of e are split behind a search that found nothing better, or was not worth its time.
        """
        problem, bracket = self._problem, self._bracket
        while True:
            decided = is_small(problem) and self._search(GLANCE)
            if not (decided or bracket.closed) and bracket.horizon == self._horizon:
                self._refine(closely=False)
                decided = self._search(EVERY)
            if decided or bracket.closed or bracket.horizon == self._horizon:
                return decided
            assert self._base is not None
            self._begin(narrowed(problem, bracket, self._base))
