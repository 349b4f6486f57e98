"""Plans of published heuristics, bounded and simulated like all others: warm starts, and baselines of the report.

Partitioners choose stage boundaries for one device per stage, on the devices as listed. Baseline planners also choose
the devices that share a stage. Both get the micro-batch size and schedule family that suit their plan best.

::

    every heuristic      all its proposals, each with its bound; below the incumbent: simulated ──▶ warm starts
    then, by bound       its best proposal is simulated, also where it cannot win               ──▶ "138.7 s"
    behind the search    one plan of each that has none yet; then the same with the time left
    no time left         the least bound of its proposals                                       ──▶ "at least 138.7 s"
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf

from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.planners import PLANNERS
from pipeplan.core.job import Objective
from pipeplan.core.wording import hint
from pipeplan.search.evaluate import EvaluatedPlan, Pace, small_enough
from pipeplan.search.proposals import Proposals
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import Baseline, Judge, Turn

BEHIND, QUICK = 0.5, 0.1
"""Largest share of the time limit that is left for heuristics behind the search; seconds of a quick simulation."""

EXCESS = 1.0
"""Seconds of the processor beyond the time limit in which heuristics have a plan each where that is quick."""
SMALL = 2**13
"""Most layers x devices with which a plan takes milliseconds."""


class Heuristics:
    """The heuristics of a search: `begin` before it, `finish` behind it, and the `rows` of all of them.

    Parameters
    ----------
    spaces : Spaces
    report : callable
        Called with every plan that was simulated.
    incumbent : callable
        Returns the value of the best plan known, in nanoseconds; None if there is none.
    affords : callable
        Returns True if there is time to simulate a plan of the candidate, and to return it as the answer.
    pace : Pace, optional
        Estimates of simulation times.
    proposals : Proposals, optional
        What heuristics proposed before for the same model, cluster and job.
    named : collection of str
        Heuristics that are judged however long that takes.
    """

    def __init__(
        self,
        spaces: Spaces,
        report: Callable[[EvaluatedPlan], None] = lambda _: None,
        *,
        incumbent: Callable[[], int | None] = lambda: None,
        affords: Callable[[Candidate], bool] = lambda _: True,
        pace: Pace | None = None,
        proposals: Proposals | None = None,
        named: Collection[str] = (),
    ) -> None:
        self._spaces, self._incumbent, self._affords, self._named = spaces, incumbent, affords, frozenset(named)
        self._judge = Judge(spaces, report, pace or Pace(), proposals or Proposals())

    def begin(self, seconds: float, at_most: float = inf) -> None:
        """Bound all proposals and simulate those below the incumbent; then the best of every other heuristic.

        Parameters
        ----------
        seconds : float
            Time limit once some plan is known: heuristics that have not begun or ended by then are marked so.
        at_most : float
            Time limit in seconds even if no plan is known.
        """
        began = time.monotonic()

        def until() -> float:
            known = self._incumbent() is not None or any(turn.best is not None for turn in self._judge.turns)
            return began + (min(seconds, at_most) if known else at_most)

        for turn in self._judge.bound_all(until):
            if turn.inside:
                self._judge.simulate(turn, until(), self._answer, self._incumbent(), skip=True)
        self._show(until)

    def needed(self, limit: float) -> float:
        """Approximate seconds of a time limit to leave for `finish`, so that each heuristic has a plan."""
        seconds = sorted(self._judge.takes(turn) for turn in self._judge.turns if self._lacks(turn))
        total = 0.0
        for each in seconds:
            total += each if total + each <= BEHIND * limit else 0.0
        return total

    def finish(self, seconds: float) -> None:
        """Simulate a plan of every heuristic without one, the named ones first, and use the ``seconds`` for the rest.

        A plan each takes milliseconds, so they may exceed the time a little; not what computes for long itself, nor
        where layers and devices are so many that a plan takes longer. For named heuristics no limit counts.
        """
        until = time.monotonic() + max(seconds, 0.0)
        ends = time.thread_time() + max(seconds, 0.0) + EXCESS
        late = [turn for turn in self._judge.turns if turn.late]
        for turn in sorted(late, key=lambda turn: (turn.name not in self._named, self._judge.computes(turn))):
            named, last = turn.name in self._named, self._last(until, ends)
            if not named and time.monotonic() >= last:
                continue
            turn.late = ""
            if self._lacks(turn) and named:
                self._judge.first_plan(turn, inf, inf, lambda candidate, _: small_enough(candidate))
            elif self._lacks(turn):
                self._judge.first_plan(turn, until, last, self._short)
        for turn in late:
            self._judge.bound(turn, until)
            if turn.inside:
                self._judge.simulate(turn, until, self._answer, self._incumbent(), skip=True)
        self._show(lambda: until)

    def rows(self) -> Mapping[str, Baseline]:
        """Each heuristic's best plan, by name."""
        return {turn.name: self._judge.baseline(turn) for turn in self._judge.turns}

    def _last(self, until: float, ends: float) -> float:
        """When a heuristic has to end whose turn it is; ``ends`` is when all have to, by the processor's time.

        So however busy the machine is, they have the same time of the processor.
        """
        left = min(ends - time.thread_time(), EXCESS) if self._small else 0.0
        return max(until, time.monotonic() + left)

    @property
    def _small(self) -> bool:
        """Whether it takes milliseconds to price and bound a plan."""
        return len(self._spaces.model.layers) * len(self._spaces.cluster.devices) <= SMALL

    @staticmethod
    def _lacks(turn: Turn) -> bool:
        """Whether a heuristic may have a plan and none is simulated."""
        return turn.best is None and (not turn.begun or bool(turn.waiting))

    def _show(self, until: Callable[[], float]) -> None:
        """Simulate the best plan of each heuristic, in the order of their bounds, as long as there is time."""

        def shown(candidate: Candidate, bound: int) -> bool:
            value = self._incumbent()
            if value is None or bound < value:  # it may become the answer
                return self._affords(candidate)
            return time.monotonic() + self._simulation(candidate) <= until() and small_enough(candidate)

        waiting = [turn for turn in self._judge.turns if turn.waiting]
        for turn in sorted(waiting, key=lambda turn: turn.waiting[0]):
            self._judge.simulate(turn, until(), shown, None, skip=False)

    def _simulation(self, candidate: Candidate) -> float:
        """Approximate seconds to simulate a plan."""
        bottleneck = self._spaces.job.objective is Objective.BOTTLENECK
        return 0.0 if bottleneck else self._judge.pace.simulate(candidate)

    def _answer(self, candidate: Candidate, _: int) -> bool:
        return self._affords(candidate)

    def _short(self, candidate: Candidate, bound: int) -> bool:
        """Whether a plan is simulated quickly, and finished too if it may become the answer; or there is time."""
        value, seconds = self._incumbent(), self._simulation(candidate)
        if not small_enough(candidate):
            return False
        if value is None or bound < value:
            return seconds + self._judge.pace.finish(candidate) <= QUICK or self._affords(candidate)
        return seconds <= QUICK


def unknown(names: Iterable[str]) -> Iterator[str]:
    """Yield a complaint about each name that no partitioner or baseline planner has: ``"beside[0]: 'x' is …"``."""
    known = (*PLANNERS, *PARTITIONERS)
    for number, name in enumerate(names):
        if name not in known:
            listed = f"; known are {', '.join(known)}"
            yield f"beside[{number}]: {name!r} is no partitioner or baseline planner{hint(name, known) or listed}"


def ranked(found: Iterable[Baseline]) -> list[Baseline]:
    """Sort baselines: fastest first, those without a plan last."""

    def key(row: Baseline) -> tuple[bool, int]:
        value = row.bound if row.value is None else row.value
        return value is None, value or 0

    return sorted(found, key=key)
