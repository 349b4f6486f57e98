"""Plans of published heuristics, simulated like all others: warm starts, and baselines of the report.

Partitioners choose stage boundaries for one device per stage, on the devices as listed. Baseline planners also choose
the devices that share a stage. Both get the micro-batch size and schedule family that suit their plan best.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.planners import PLANNERS, unlike
from pipeplan.core.job import Objective
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan, evaluate, overflow
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space

LATE = "the time was over before its turn"
CUT_SHORT = "the time was over before all that it proposes was simulated"
SHORT = "the time does not suffice for it on this number of layers"
LONG = "the time does not suffice to simulate this number of micro-batches"
"""Reasons why a heuristic has no plan, or not its best one, although it may have one."""
NOT_ASKED = (LATE, SHORT, LONG)
"""Reasons that leave open whether the heuristic has a plan."""

SECONDS_PER_STEP = 1e-8
"""Approximate seconds per unit of a heuristic's `effort`."""


@dataclass(frozen=True)
class Baseline:
    """A heuristic's best plan, or the reason why it has none.

    ``outside``: why the plan lies outside the searched space, if it does. Such a plan is only shown.
    """

    name: str
    evaluated: EvaluatedPlan | None
    why: str = ""
    outside: str = ""

    @property
    def value(self) -> int | None:
        """Nanoseconds; None without a plan."""
        return None if self.evaluated is None else self.evaluated.value

    @property
    def label(self) -> str:
        """Depth, micro-batches and family of the plan, for users."""
        return "" if self.evaluated is None else self.evaluated.label

    @property
    def peaks(self) -> tuple[int, ...]:
        """Peak bytes of each device."""
        return () if self.evaluated is None else self.evaluated.timeline.peaks


@dataclass
class _Reason:
    """The latest reason why a heuristic has no plan."""

    text: str = "the job does not allow one device per stage"


Proposals = Iterator[tuple[Candidate, Boundaries]]


def baselines(
    space: Space,
    seconds: float,
    report: Callable[[EvaluatedPlan], None] = lambda _: None,
    *,
    known: bool = False,
    at_most: float = inf,
    affords: Callable[[Candidate], bool] = lambda _: True,
) -> Mapping[str, Baseline]:
    """Return each heuristic's best plan, by name.

    Parameters
    ----------
    seconds : float
        Time limit once some plan is known: heuristics that have not begun or ended by then are marked so.
    report : callable
        Called with every plan that was simulated.
    known : bool
        Whether a plan is known already.
    at_most : float
        Time limit in seconds even if no plan is known.
    affords : callable
        Returns True if there is time to simulate a plan of the candidate.
    """
    end, last = time.monotonic() + seconds, time.monotonic() + at_most
    found: dict[str, Baseline] = {}

    def enter(name: str, proposals: Callable[[_Reason, float], Proposals]) -> None:
        some = known or any(baseline.evaluated for baseline in found.values())
        until = min(end, last) if some else last
        if time.monotonic() >= until:
            found[name] = Baseline(name, None, LATE)
            return
        why = _Reason()
        best = _best_of(space, proposals(why, until), why, report, until, affords)
        if time.monotonic() >= until:
            why.text = CUT_SHORT
        elif best is not None:
            why.text = ""
        beyond = None if best is None else space.outside(best)
        found[name] = Baseline(name, best, why.text, beyond or "")

    if space.job.objective is Objective.STEP:  # planners first: they choose more, so their plans are better starts
        for name in PLANNERS:
            enter(name, lambda why, until, name=name: _planner_proposals(name, space, why, until))  # type: ignore[misc]
    for name in PARTITIONERS:
        enter(name, lambda why, until, name=name: _partitioner_proposals(name, space, why, until))  # type: ignore[misc]
    return found


def ranked(found: Iterable[Baseline]) -> list[Baseline]:
    """Sort baselines: fastest first, those without a plan last."""
    return sorted(found, key=lambda baseline: (baseline.value is None, baseline.value or 0))


def _partitioner_proposals(name: str, space: Space, why: _Reason, until: float) -> Proposals:
    """Yield a partitioner's boundaries for every size, under every family; devices without layers are left out."""
    partitioner, groups = PARTITIONERS[name], space.single_device_groups
    for size in space.sizes if groups else ():
        if time.monotonic() + SECONDS_PER_STEP * partitioner.effort(len(space.model.layers), len(groups)) > until:
            why.text = SHORT
            return
        chain = space.prices.chain(groups, size)
        try:
            boundaries = partitioner.balance(chain, space.job.batch // size)
        except NotApplicable as reason:
            why.text = str(reason)
            continue
        kept = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
        edges = (0, *(boundaries[s + 1] for s in kept))
        for candidate in space.candidates(tuple(groups[s] for s in kept), size, free=not space.families):
            yield candidate, edges


def _planner_proposals(name: str, space: Space, why: _Reason, until: float) -> Proposals:
    """Yield a baseline planner's arrangements for every size, under each of its families."""
    planner = PLANNERS[name]
    devices = space.cluster.devices
    if planner.families:
        why.text = f"it runs {' or '.join(planner.families)} only"
    for size in space.sizes:
        if time.monotonic() + SECONDS_PER_STEP * planner.effort(space.model, space.cluster) > until:
            why.text = SHORT
            return
        try:
            arrangements = planner.arrange(space.model, space.cluster, space.job, size)
        except NotApplicable as reason:
            why.text = str(reason)
            continue
        for arrangement in arrangements:
            mixed = unlike(arrangement, space.cluster)
            if mixed is not None:
                why.text = mixed
                continue
            widest, count = max(arrangement.replicas), space.job.batch // size
            if widest > count:  # never searched: some replicas would be idle
                why.text = (
                    f"{widest} replicas of a stage share {count} micro-batches; smaller micro-batches keep all busy"
                )
                continue
            groups = tuple(tuple(devices[index] for index in stage) for stage in arrangement.devices)
            for candidate in space.candidates(groups, size, free=not planner.families):
                if len(groups) == 1 or not planner.families or candidate.family.name in planner.families:
                    yield candidate, arrangement.boundaries


def _best_of(
    space: Space,
    proposals: Proposals,
    why: _Reason,
    report: Callable[[EvaluatedPlan], None],
    end: float,
    affords: Callable[[Candidate], bool],
) -> EvaluatedPlan | None:
    """Simulate proposals in the order of their bounds, until no bound is below the best value or ``end`` has passed.

    Proposals within the searched space come first. Others are simulated only where none of these fits. ``end`` is a
    time of `time.monotonic`.
    """
    # Proposals that fit: those in the space first, by bound, then by micro-batches in flight.
    promising = []
    for number, (candidate, boundaries) in enumerate(proposals):
        if time.monotonic() >= end:
            break
        excess = overflow(candidate, boundaries)
        if excess is not None:
            why.text = excess
            continue
        beyond = space.unasked(candidate, boundaries) is not None
        bound = candidate.problem.evaluate(boundaries)
        promising.append((beyond, bound, sum(candidate.in_flight), number, candidate, boundaries))
    best: EvaluatedPlan | None = None
    inside = False
    for beyond, bound, _, _, candidate, boundaries in sorted(promising, key=lambda entry: entry[:4]):
        if (best is not None and (bound >= best.value or (beyond and inside))) or time.monotonic() >= end:
            break
        if not affords(candidate):
            why.text = LONG
            continue
        evaluated = evaluate(space.cluster, candidate, boundaries)
        inside = inside or not beyond
        report(evaluated)
        if best is None or evaluated.value < best.value:
            best = evaluated
    return best
