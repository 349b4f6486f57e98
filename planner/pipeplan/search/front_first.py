"""`front_first`: the best plan found whose sums go on, front layers first, while the next step begins.

Plans that a search found, and data parallelism with each micro-batch size, keep their stages, devices and schedules,
but not level 1 of ZeRO, whose shares belong to whole sums. Each gets the chunk size and the order that leave least
exposed, and then what may be lost within a budget. Plans come in the order of a bound: their value if sums could be
interrupted (`pipeplan_formulations.priority`). No bound of the search covers such plans, and not all of them are tried.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.priority import Priority
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.collectives import Ring
from pipeplan.costs.front_first import StageSums, beside, stage_sums
from pipeplan.costs.network import rings
from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space
from pipeplan.simulate import period
from pipeplan_formulations.common.report import Limits, Report
from pipeplan_formulations.priority import Chunks, Losses, Order, order, solve

LEAST, MOST_CHUNKS = 2**16, 2000
"""Least bytes of a chunk that is considered, and most chunks of a stage."""
ORDERED, SECONDS = 40, 2.0
"""Most chunks whose order is searched, and for how long; of more the front-first order is close to the bound."""
MOST_PLANS = 200
"""Most plans found that are tried, the best ones."""
MEGABYTE, NOTHING = 10**6, 1e-6
"""Bytes that prices are of, and the least price that is one."""


class Price(NamedTuple):
    """What a megabyte more of a layer's gradients costs, in nanoseconds of the period."""

    layer: str
    time: float


@dataclass(frozen=True)
class FrontFirstPlan:
    """A plan whose sums run front layers first.

    Attributes
    ----------
    evaluated : EvaluatedPlan
        With its value, and the pipeline of its sums.
    space : Space
        In which it lies.
    hidden : bool
        Whether no step waits for sums, so that there is nothing to lose.
    prices : tuple of Price
        Of the layers whose sums a step waits for, in the stage that waits longest, in order.
    """

    evaluated: EvaluatedPlan
    space: Space
    hidden: bool
    prices: tuple[Price, ...]


def check_front_first(job: Job, cluster: Cluster, budget: float) -> None:
    """Refuse what front-first sums, and losses, exclude.

    Raises
    ------
    InputError
        With the reason, and what works.
    """
    what = "sums front layers first (front_first)" if not budget else f"a loss budget of {budget:g} (loss_budget)"
    if job.objective.value != "period":
        raise InputError(f"{what} let the next step begin before all sums have ended; ask for the objective 'period'")
    for wrong, why in (
        (
            bool(job.zero) and 0 not in job.zero,
            f"levels {', '.join(map(str, job.zero))} of ZeRO (zero) send shares of sums, or parameters, which must all "
            "arrive; ask for level 0",
        ),
        (job.staleness > 0, "staleness 1 lets all sums run beside the next batch anyway; drop one"),
        (min(job.slices, default=1) > 1, "token slices (slices) end with another backward; ask for whole sequences"),
        (
            min(job.teams, default=1) > 1,
            f"teams of {min(job.teams, default=1)} sum parts of layers; ask for teams of 1",
        ),
        (job.intra_layer, "divided layers (intra_layer) have no sums; drop one"),
        (not job.overlap_reduction, "no_overlap_reduction lets nothing run beside sums; drop one"),
    ):
        if wrong:
            raise InputError(f"{what} are sums of whole layers beside passes, and {why}")
    if len(cluster.devices) == 1:
        raise InputError(f"{what}: one device sums nothing; drop it")


def loss_budget(value: object) -> Fraction:
    """Return a share of gradients that may be lost, exactly as it is written.

    Raises
    ------
    InputError
        If it is not in [0, 0.5).
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 0.5:
        raise InputError(
            f"loss_budget {value!r} is no share of gradients that may be lost: it is at least 0 and below 0.5, like "
            "0.02. Training that tolerates more needs another optimiser, not a plan"
        )
    return Fraction(str(value))


def front_first(
    model: Model, cluster: Cluster, job: Job, found: Sequence[EvaluatedPlan], budget: Fraction
) -> FrontFirstPlan | None:
    """Return the best of the plans found with front-first sums; None if none of them can have such.

    Parameters
    ----------
    job : Job
        The question, of objective 'period'.
    found : sequence of EvaluatedPlan
        Plans of the search, the best first.
    budget : Fraction
        Share of the gradients of a stage that may be lost.
    """
    space = Space(model, cluster, replace(job, zero=(0,), teams=(), slices=(), unlike_teams=False))
    best: FrontFirstPlan | None = None
    for bound, plan, stages in sorted(_candidates(space, found[:MOST_PLANS], budget), key=lambda row: row[0]):
        if best is not None and bound >= best.evaluated.value:
            break
        made = _made(space, plan, stages, budget)
        if best is None or made.evaluated.value < best.evaluated.value:
            best = made
    return best


def _candidates(
    space: Space, found: Iterable[EvaluatedPlan], budget: Fraction
) -> Iterator[tuple[int, EvaluatedPlan, list[StageSums | None]]]:
    """Yield plans at level 0 that may have front-first sums, each with a bound on its value with them, and its sums."""
    seen = set()
    for candidate, boundaries in (*_parallel(space), *_alike(space, found)):
        key = candidate.chain.groups, candidate.chain.micro_batch, candidate.family.name, boundaries
        if key in seen or not _suits(space, candidate, boundaries):
            continue
        seen.add(key)
        plan = evaluate(space.cluster, candidate, boundaries)
        spans = enumerate(pairwise(boundaries))
        stages = [stage_sums(candidate.chain, s, a, b) for s, (a, b) in spans]
        least = [0 if sums is None else sums.least(2 * budget) for sums in stages]
        yield period(plan.schedule, beside(plan.pipeline, candidate.chain, boundaries, least)), plan, stages


def _parallel(space: Space) -> Iterator[tuple[Candidate, Boundaries]]:
    """Data parallelism on all devices, with each micro-batch size."""
    devices = space.cluster.devices
    if len({device.kind.name for device in devices}) == 1:
        for size in space.sizes:
            for candidate in space.candidates((devices,), size):
                yield candidate, (0, len(space.model.layers))


def _alike(space: Space, found: Iterable[EvaluatedPlan]) -> Iterator[tuple[Candidate, Boundaries]]:
    """The plans found, at level 0."""
    for plan in found:
        chain = plan.candidate.chain
        if chain.split is None and chain.slices == 1 and chain.zero < SHARDED and not plan.candidate.placement:
            for candidate in space.candidates(chain.groups, chain.micro_batch):
                if candidate.family.name == plan.candidate.family.name:
                    yield candidate, plan.boundaries


def _suits(space: Space, candidate: Candidate, boundaries: Boundaries) -> bool:
    """Whether a plan lies in the space of level 0, and its sums can run in chunks beside passes of the next step."""
    chain, spans = candidate.chain, [*pairwise(boundaries)]
    return (
        not candidate.family.two_lanes
        and max(candidate.replicas) > 1
        and chain.overlaps
        and all(isinstance(ring, Ring) for ring in rings(space.cluster, chain.groups))
        and not any(shared.left(a, b) or shared.copied(a, b) for shared in chain.shared for a, b in spans)
        and space.unasked(candidate, boundaries) is None
        and candidate.fits(boundaries)
    )


def _made(space: Space, plan: EvaluatedPlan, stages: Sequence[StageSums | None], budget: Fraction) -> FrontFirstPlan:
    """The plan with the best chunks of each stage, and what may be lost where steps wait."""
    priorities, longest, prices = [], 0, tuple[Price, ...]()
    for sums in stages:
        own = Priority(0) if sums is None else _ordered(sums)
        if sums is not None and own.exposed:
            losses = _losses(sums, own.chunk, budget)
            if budget:
                own = _ordered(replace(sums, lost=losses.shares))
            if own.exposed >= longest:
                longest, prices = own.exposed, tuple(_prices(sums, losses))
        priorities.append(own)
    candidate = plan.candidate
    late = [own.exposed for own in priorities]
    value = period(plan.schedule, beside(plan.pipeline, candidate.chain, plan.boundaries, late))
    return FrontFirstPlan(replace(plan, value=value, priority=tuple(priorities)), space, not prices, prices)


def _ordered(sums: StageSums) -> Priority:
    """The chunk size and order that leave least exposed; of equal ones the largest chunks."""
    best: tuple[int, int, Chunks, Report[Order]] | None = None
    chunk = max(int(sums.sizes.max()), 1)
    while best is None or (chunk >= LEAST and sums.counts(chunk).sum() <= MOST_CHUNKS):
        problem = sums.chunks(sums.counts(chunk))
        report = order(problem, Limits(), backend="front-first")
        assert report.objective is not None
        exposed = sums.exposed(report.objective)
        if best is None or exposed < best[0]:
            best = exposed, chunk, problem, report
        chunk = -(-chunk // 2)
    exposed, chunk, problem, report = best
    if exposed and len(report.solution or ()) <= ORDERED:
        report = order(problem, Limits(time=SECONDS, workers=1), report.solution)
    assert report.solution is not None
    return sums.priority(chunk, problem, report.solution)


def _losses(sums: StageSums, chunk: int, budget: Fraction) -> Losses:
    """What to lose within the budget, and what each layer costs then."""
    problem = sums.sums(sums.counts(chunk), budget)
    report = solve(problem, Limits(time=SECONDS))
    if report.solution is None:  # the solver failed: nothing is lost
        report = solve(replace(problem, budget=Fraction(0)), Limits(), backend="closed")
    assert report.solution is not None
    return report.solution


def _prices(sums: StageSums, losses: Losses) -> Iterator[Price]:
    rows = zip(sums.names, losses.prices, sums.times.tolist(), sums.sizes.tolist(), strict=True)
    for name, price, time, size in rows:
        if price > NOTHING:
            yield Price(name, price * time / size * MEGABYTE)
