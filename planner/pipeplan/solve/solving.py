"""The steps of one search: open the nodes, judge heuristics, close the gap.

::

    open ──▶ heuristics ──▶ run ──▶ teams ──▶ run ──▶ resume ──▶ heuristics' rest ──▶ run
    (large: later)       no teams    below the best plan
                         (small: late nodes too)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.plan import Plan
from pipeplan.core.searched import OTHER_WIDTHS, UNLIKE_NODES
from pipeplan.core.throughput import yardstick
from pipeplan.core.validate import validate_plan
from pipeplan.search import any_order_nodes, mixed_nodes, nodes_of, searches_locally
from pipeplan.search.branch_and_bound import SLACK, OnProgress, PlanSearch
from pipeplan.search.build_plan import build_plan, shared_out
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.heuristics import Heuristics
from pipeplan.search.infeasible import promising
from pipeplan.search.local_search import Improver
from pipeplan.search.proposals import Proposals
from pipeplan.search.regimes import REGIMES
from pipeplan.search.scope import searched
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.turns import Baseline
from pipeplan.solve.question import Question
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Stop
from pipeplan_formulations.common.signals import interruptible

if TYPE_CHECKING:  # few jobs need these, and functions below import them
    from pipeplan.search.nodes.teams import TeamsNode

FOR_HEURISTICS, FOR_LATE = 0.2, 0.05
"""Share of the time limit in which heuristics may begin, and where layouts are large, so that they begin late."""
WITH_BEAMS = REGIMES.beam_devices.most
"""Most devices with which the process beside a search without teams only searches locally."""
SHOWN = REGIMES.shown_samples.most
"""With more devices x samples than this, heuristics have only a share of that time,"""
FOR_SHOWN = 0.03
"""namely this one, and as much behind the search."""
FOR_FAMILIES = 0.35
"""Share of the time limit in which only schedule families are searched, where any order is allowed: the best of them is
the start of the search for other orders."""
FOR_MIXES = 0.5
"""Share of the time limit that is left for stages with teams of unlike sizes, beside those of one size."""
FOR_ROUNDS = 0.3
"""Share of the time limit that is left for several stages of a device, beside one; with so many devices x samples they
are no later than others."""
FOR_TEAMS = 0.65
"""Share of the time limit in which teams are opened."""
WITHOUT_TEAMS = 0.05
"""Share of the time left in which plans without teams are sought before teams are opened. The best of them closes
those whose bound before pricing is no less. With very many devices x samples it is `FOR_SHOWN`."""
FOR_REASONS = 0.05
"""Share of the time limit that may be spent in addition on the reasons why no plan fits."""


@dataclass(frozen=True)
class Means:
    """What a search may use: the arguments of `pipeplan.solve` beside the question."""

    limits: Limits
    backend: str
    on_progress: OnProgress = lambda *_: None
    proposals: Proposals | None = None
    beside: Sequence[str] = ()


class Solving:
    """One search for the best plan of a question.

    Parameters
    ----------
    asked : Question
    means : Means
    kept : float
        Seconds of the time limit that are kept for what follows the search.
    """

    def __init__(self, asked: Question, means: Means, kept: float = 0.0) -> None:
        self.asked, self.means, self.clock = asked, means, Clock(means.limits)
        job, limits = asked.job, means.limits
        questions = None if means.proposals is None else means.proposals.questions_at(job.schedules)
        opening = Clock(Limits(time=FOR_TEAMS * limits.time))
        self.spaces = Spaces(asked.model, asked.cluster, job, questions=questions, opening=opening)
        self.search = PlanSearch(
            replace(limits, time=self.clock.left - kept),
            means.on_progress,
            cluster_of=self.spaces.cluster_of,
            backend=means.backend,
            outside=self.spaces.outside,
        )
        self.search.unopened = self.spaces.least
        self.heuristics: Heuristics | None = None
        self.hopeful: list[Space] = []
        self._waiting: list[TeamsNode] = []
        self._large = False

    def run(self) -> None:
        """Search until the optimum is proved, the time is over, or a signal arrives.

        Raises
        ------
        InfeasibleError, UndecidedError, InputError
            As in `pipeplan.solve`.
        """
        try:
            self._open()
            self._require_hope()
            self._search()
            if self.late and self.search.stop is Stop.EXHAUSTED:
                self.search.stop = Stop.TIME
        except KeyboardInterrupt:  # Ctrl-C returns the best plan so far
            self.search.stop = Stop.INTERRUPT
        except BeyondIntegersError as error:
            raise InputError(
                f"a step of {self.asked.job.batch} samples takes too long to be counted in nanoseconds ({error}); ask "
                "about fewer"
            ) from error
        finally:
            if self.search.improver is not None:
                self.search.improver.close()
        self._require_plan()

    def first_plan(self) -> Plan | None:
        """Search until there is any plan; None if none was found: see `refuted`.

        Heuristics are asked only where they may place a plan that no listed one is, and no listed one fits.

        Raises
        ------
        InputError
            As in `pipeplan.solve`.
        KeyboardInterrupt
            If the search was interrupted: it decides nothing.
        """
        search = self.search
        self._open()
        search.run()
        if search.incumbent is None and search.stop is not Stop.INTERRUPT:
            self._open_teams()
            search.resume()
            search.run()
        if self.refuted and {UNLIKE_NODES, OTHER_WIDTHS} & {*searched(self.spaces).not_searched}:
            self._begin_heuristics()
        if search.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        return None if search.incumbent is None else self.plan(search.incumbent)

    @property
    def refuted(self) -> bool:
        """True if it is proved that no plan fits."""
        return self.search.refuted and not self.spaces.late

    @property
    def late(self) -> bool:
        """Whether the time was over before all teams were open whose bound leaves hope."""
        return any(
            not each.done and not each.left and not self.search.fathoms(each.bound) for each in self.spaces.openings
        )

    @interruptible()
    def _open(self) -> None:
        """Push the root nodes of plans without teams; teams wait, unless there is no hope without them."""
        search = self.search
        self.hopeful += promising(tuple(self.spaces))
        for node in nodes_of(self.hopeful):
            search.push(node)
        for late in chain.from_iterable(map(any_order_nodes, self.hopeful)):
            search.defer(late)
        self._waiting = self._teams()
        search.unopened = self._least_waiting
        while self._waiting and (not self.hopeful or self.asked.job.unlike_teams):
            first = self._waiting.pop(0)
            search.unopened = self._least_waiting
            search.expand(first)
            search.find_plan()
        self.spaces.require_some()
        for mixed in self.spaces.mixed:
            for node in mixed_nodes(mixed):
                search.defer(node)

    def _teams(self) -> "list[TeamsNode]":
        """The nodes of teams, the least bound first."""
        if not self.spaces.openings:
            return []
        from pipeplan.search.nodes.teams import TeamsNode

        nodes = [TeamsNode(each, self.hopeful, self.spaces.usual) for each in self.spaces.openings]
        return sorted(nodes, key=lambda node: node.bound)

    @property
    def _least_waiting(self) -> int | None:
        """A lower bound on the plans of teams that no node of the search has yet; None if there are none."""
        return min((node.bound for node in self._waiting), default=None)

    def _open_teams(self) -> None:
        """Let teams have their turn: their nodes open them, or are closed by their bounds."""
        while self._waiting:
            self.search.push(self._waiting.pop())
        self.search.unopened = None

    def _require_hope(self) -> None:
        """Raise the error of a question of which nothing was opened, or for which clearly no plan fits."""
        if self.spaces.late:
            if not any(True for _ in self.spaces):
                raise UndecidedError(Stop.TIME, self.search.bound)
        elif not self.hopeful and not self.spaces.mixed:
            raise self._infeasible(self.means.limits.time)

    def _search(self) -> None:
        """Search, judge heuristics beside, and give them what the search leaves."""
        search, whole = self.search, self.search.limits.time
        if any(map(searches_locally, self.hopeful)):
            limits = self.means.limits
            search.improver = Improver(self.spaces, limits.seed, limits.time, beside=limits.workers > 1)
            if limits.workers > 1 and (self.spaces.openings or len(self.asked.cluster.devices) > WITH_BEAMS):
                from pipeplan.search.nodes.beside import Shared

                search.helper = Shared(search.improver, self.spaces)
        self._large = any(space.large for space in self.hopeful)  # plans of heuristics come late and improve little
        for_rounds = FOR_ROUNDS * (bool(self.spaces.folded) and not self._many)
        for_others = whole * max(FOR_MIXES * bool(self.spaces.mixed), for_rounds)
        first = not self._large and not (self._waiting and self.asked.job.teams)  # named teams are for heuristics too
        if first:
            self._begin_heuristics()
        if self._waiting:
            search.find_plan()
        if self._waiting and search.incumbent is None:
            self._open_teams()
        elif self._waiting:
            self._advance(search.rest * (1 - (FOR_SHOWN if self._many else WITHOUT_TEAMS)))
            if all(space.small for space in self.hopeful):  # milliseconds, and teams take longer to be priced
                with search.late_too():
                    self._advance(search.rest * (1 - WITHOUT_TEAMS))
            self._open_teams()
        if self._large:
            self._advance(max(whole * self._for_heuristics, for_others))
        if not first:
            self._begin_heuristics(after=self._large and search.incumbent is not None)
        assert self.heuristics is not None
        heuristics = self.heuristics
        kept = min(heuristics.needed(whole), whole * (FOR_SHOWN if self._many else 1))
        self._advance(max(kept, whole * (1 - FOR_FAMILIES) if self.spaces.lowest.any_order else for_others))
        search.resume()
        self._advance(kept)
        with interruptible():
            heuristics.finish(search.left)
        self._advance()

    def _advance(self, reserve: float = 0.0) -> None:
        """Search until only so many seconds are left; an interrupt ends all that follows too."""
        self.search.run(reserve=reserve)
        if self.search.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt

    @property
    def _for_heuristics(self) -> float:
        """Share of the time limit in which heuristics may begin."""
        return FOR_SHOWN if self._many else FOR_LATE if self._large else FOR_HEURISTICS

    @property
    def _many(self) -> bool:
        """Whether devices and samples are so many that it takes seconds to simulate a plan of a heuristic."""
        return len(self.asked.cluster.devices) * self.asked.job.batch > SHOWN

    @interruptible()
    def _begin_heuristics(self, after: bool = False) -> None:
        """Let heuristics propose plans; ``after``: the search has found one, and left some time."""
        search = self.search
        self.heuristics = Heuristics(
            self.spaces,
            search.submit,
            incumbent=lambda: search.value,
            affords=search.affords,
            pace=search.pace,
            proposals=self.means.proposals,
            named=self.means.beside,
        )
        self.heuristics.begin(
            search.limits.time * self._for_heuristics,
            max(search.left, 0.0) if after else max(search.rest, 0.0) / 2 + SLACK,
        )

    def _require_plan(self) -> None:
        """Raise the error of a search that found no plan."""
        search = self.search
        if search.incumbent is not None:
            return
        if search.stop in (Stop.TIME, Stop.INTERRUPT):
            raise UndecidedError(search.stop, search.bound, search.unaffordable)
        if not search.refuted:
            stop = Stop.EXHAUSTED if search.unaffordable is None else Stop.TIME
            raise UndecidedError(stop, search.bound, search.unaffordable)
        raise self._infeasible(max(search.left, FOR_REASONS * self.means.limits.time))

    def _infeasible(self, seconds: float) -> InfeasibleError:
        """The error of a question for which no plan fits, with reasons that are sought for so many seconds."""
        from pipeplan.search.alternatives import why_infeasible

        return InfeasibleError(why_infeasible(self.spaces, seconds))

    @property
    def rows(self) -> Mapping[str, Baseline]:
        """The plans of heuristics by name."""
        return {} if self.heuristics is None else self.heuristics.rows()

    @property
    def incumbent(self) -> EvaluatedPlan:
        """The best plan found."""
        assert self.search.incumbent is not None, "`run` has found a plan"
        return self.search.incumbent

    @property
    def found(self) -> list[EvaluatedPlan]:
        """Plans of the search and of heuristics."""
        rows = (row.evaluated for row in self.rows.values() if not row.outside)
        return [*self.search.tried, *(plan for plan in rows if plan is not None)]

    def plan(self, chosen: EvaluatedPlan, space: Space | None = None) -> Plan:
        """Return the plan on all devices of teams, checked; ``space``: where it lies, if outside those searched."""
        model, cluster, job = self.asked.model, self.asked.cluster, self.asked.job
        bound = self.search.bound if space is None else 0  # which says that nothing is proved
        space = space or self.spaces.of(chosen.candidate)
        own = space.model.unfolded or space.model
        plan = build_plan(own, space.cluster, job, chosen, bound)
        validate_plan(plan, own, space.cluster)
        chosen.check()
        return replace(shared_out(plan, model, space.split), yardstick=yardstick(model, cluster))
