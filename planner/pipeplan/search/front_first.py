"""`front_first`: the best plan found whose sums go on, front layers first, while the next step begins.

Plans that a search found, and data parallelism with each micro-batch size, keep their stages, devices and schedules,
but not level 1 of ZeRO, whose shares belong to whole sums. Each gets the units, chunks and order that leave least
exposed, and then what may be lost within a budget. Plans come in the order of a bound: their value if sums could be
interrupted (`pipeplan_formulations.priority`). No bound of the search covers such plans, and not all of them are tried.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.priority import Priority
from pipeplan.core.units import format_time
from pipeplan.core.wording import counted
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.collectives import Ring
from pipeplan.costs.front_first import StageSums, beside, stage_sums
from pipeplan.costs.network import rings
from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.outside import unasked
from pipeplan.search.space.space import Space
from pipeplan.simulate import period
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.priority import BUDGETS_BELOW, Losses, order, solve

LEAST, MOST_CHUNKS = 2**16, 2000
"""Least bytes of a chunk that is considered, and most chunks of a stage."""
ORDERED, SECONDS = 40, 2.0
"""Most chunks whose order is searched, and for how long; of more the front-first order is close to the bound."""
MOST_PLANS = 200
"""Most plans found that are tried, the best ones."""
MEGABYTE, NOTHING, SHOWN = 10**6, 1e-6, 5
"""Bytes that prices are of, the least price that is one, and the most prices in a text."""
NOTABLE = 0.001
"""Share of a step below which waiting for sums is none, and losses are not worth it."""


@dataclass(frozen=True)
class FrontFirst:
    """What an answer says about sums front layers first.

    Attributes
    ----------
    plan : Plan or None
        The best plan with such sums; None if none of those found can have them.
    ideal : int
        Nanoseconds that such a plan would take at least if its sums could be interrupted, whatever is lost.
    """

    plan: Plan | None
    ideal: int = 0

    @property
    def longest(self) -> Priority:
        """The sums of the stage whose steps wait longest for them."""
        return max(self.plan.priority if self.plan else (), key=lambda own: own.exposed, default=Priority(0))

    def line(self, value: int) -> str:
        """A sentence for users, beside an answer of ``value`` nanoseconds."""
        if self.plan is None:
            return (
                "sums front layers first: none of the plans found can have them, which takes replicas of whole layers "
                "that fit without ZeRO, on links whose sums are rings, beside computation"
            )
        own = self.plan.value
        more = f"{own / value - 1:+.1%}" if value else ""
        first = (
            f"sums front layers first: {format_time(own)} ({more}) with {self.plan.shape}, "
            f"{counted(self.plan.micro_batches, 'micro-batch')} of {self.plan.micro_batch} (at best "
            f"{format_time(self.ideal)} without chunks); the bound is not about it"
        )
        saved = " (-o saves it)" if own < value else ", so keep the plan above"
        lost = [name for own in self.plan.priority for name, _ in own.lost]
        waits = prices_text(self.longest) or "no step waits for a sum notably, so nothing may be lost"
        what = f"; of {counted(len(lost), 'layer')} gradients may be lost" if lost else ""
        return f"{first}{saved}; {waits}{what}"

    def as_json(self) -> dict[str, object]:
        """Plain data; times in seconds."""
        if self.plan is None:
            return {"time_s": None}
        own = self.plan.priority
        return {
            "time_s": self.plan.value / 1e9,
            "ideal_s": self.ideal / 1e9,
            "chunk_bytes": [each.chunk for each in own],
            "binding": [list(each.binding) for each in own],
            "lost": [dict(each.lost) for each in own],
            "seconds_per_mb": {name: time / 1e9 for name, time in self.longest.prices},
        }


def prices_text(own: Priority) -> str:
    """What a megabyte more of the dearest layers costs a step; empty if no step waits for them."""
    dear = sorted(own.prices, key=lambda price: -price[1])[:SHOWN]
    costs = ", ".join(f"{name} {format_time(round(time))}" for name, time in dear)
    rest = f" and {len(own.prices) - SHOWN} more" if len(own.prices) > SHOWN else ""
    return f"a MB more of a layer costs a step: {costs}{rest}" if dear else ""


@dataclass(frozen=True)
class FrontFirstPlan:
    """A plan whose sums run front layers first.

    Attributes
    ----------
    evaluated : EvaluatedPlan
        With its value, and the pipeline of its sums.
    space : Space
        In which it lies.
    ideal : int
        The least of the bounds of all plans tried, in nanoseconds.
    """

    evaluated: EvaluatedPlan
    space: Space
    ideal: int


def check_front_first(job: Job, cluster: Cluster, budget: Fraction) -> None:
    """Refuse what front-first sums, and losses, exclude.

    Raises
    ------
    InputError
        With the reason, and what works.
    """
    what = f"a loss budget of {float(budget):g} (loss_budget)" if budget else "sums front layers first (front_first)"
    if job.objective is not Objective.PERIOD:
        raise InputError(f"{what}: the next step begins before all sums have ended; ask for the objective 'period'")
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
            raise InputError(f"{what}: gradients of whole layers are summed beside passes, and {why}")
    if len(cluster.devices) == 1:
        raise InputError(f"{what}: one device sums nothing; drop it")


def as_loss_budget(value: object) -> Fraction:
    """Return a share of gradients that may be lost, exactly as it is written.

    Raises
    ------
    InputError
        If it is not below `BUDGETS_BELOW`, or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < BUDGETS_BELOW:
        raise InputError(
            f"loss_budget {value!r} is no share of gradients that may be lost: it is at least 0 and below "
            f"{float(BUDGETS_BELOW):g}, like 0.02. Training that tolerates more needs another optimiser, not a plan"
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
    rows = sorted(_candidates(space, found[:MOST_PLANS], budget), key=lambda row: row[0])
    for bound, plan, stages in rows:
        if best is not None and bound >= best.evaluated.value:
            break
        made = _made(plan, stages, budget)
        if best is None or made.value < best.evaluated.value:
            best = FrontFirstPlan(made, space, rows[0][0])
    return best


def _candidates(
    space: Space, found: Iterable[EvaluatedPlan], budget: Fraction
) -> Iterator[tuple[int, EvaluatedPlan, list[StageSums | None]]]:
    """Yield plans at level 0 that may have front-first sums, each with a bound on its value with them, and its sums."""
    seen = set()
    for candidate, boundaries in (*_parallel(space), *_alike(space, found)):
        devices = tuple(tuple(device.index for device in group) for group in candidate.chain.groups)
        key = devices, candidate.chain.micro_batch, candidate.family.name, boundaries
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
        and unasked(space, candidate, boundaries) is None
        and candidate.fits(boundaries)
    )


def _made(plan: EvaluatedPlan, stages: Sequence[StageSums | None], budget: Fraction) -> EvaluatedPlan:
    """The plan with the best units and chunks of each stage; where steps wait, with what may be lost and prices."""
    priorities = []
    for sums in stages:
        own = Priority(0)
        if sums is not None:
            units, own = _ordered(sums)
            if own.exposed > NOTABLE * plan.value:
                losses = _losses(units, own.chunk, budget)
                left = replace(units, lost=losses.shares)
                lossy = min(
                    (_in_order(left, chunk) for chunk in {own.chunk, _chunked(left)[1]}),
                    key=lambda priority: priority.exposed,
                )
                own = lossy if own.exposed - lossy.exposed > NOTABLE * plan.value else own
                own = replace(own, prices=tuple(_prices(units, losses)))
        priorities.append(own)
    candidate = plan.candidate
    late = [own.exposed for own in priorities]
    value = period(plan.schedule, beside(plan.pipeline, candidate.chain, plan.boundaries, late))
    return replace(plan, value=value, priority=tuple(priorities))


def _ordered(sums: StageSums) -> tuple[StageSums, Priority]:
    """The units, chunk size and order that leave least exposed; of equal ones the largest units and chunks."""
    rows: list[tuple[int, int, StageSums]] = []
    for most in _halves(int(sums.sizes.sum())):
        units = sums.joined(most)
        if not rows or len(units.names) > len(rows[-1][2].names):
            rows.append((*_chunked(units), units))
    _, chunk, units = min(rows, key=lambda row: row[0])
    return units, _in_order(units, chunk)


def _chunked(units: StageSums) -> tuple[int, int]:
    """What is exposed in front-first order, with the chunk size that leaves least; of equal ones the largest."""
    rows: list[tuple[int, int]] = []
    for chunk in _halves(int(units.sizes.max())):
        if not rows or units.counts(chunk).sum() <= MOST_CHUNKS:
            report = order(units.chunks(units.counts(chunk)), Limits(), backend="front-first")
            assert report.objective is not None
            rows.append((units.exposed(report.objective), chunk))
    return min(rows, key=lambda row: row[0])


def _halves(size: int) -> list[int]:
    """Bytes, halved as long as they are `LEAST`."""
    found = [max(size, 1)]
    while found[-1] // 2 >= LEAST:
        found.append(-(-found[-1] // 2))
    return found


def _in_order(units: StageSums, chunk: int) -> Priority:
    """The sums in front-first order, or, of few chunks, in the best one."""
    problem = units.chunks(units.counts(chunk))
    report = order(problem, Limits(), backend="front-first")
    if report.status is not Status.OPTIMAL and sum(map(len, problem.times)) <= ORDERED:
        report = order(problem, Limits(time=SECONDS, workers=1), report.solution)
    assert report.solution is not None
    return units.priority(chunk, problem, report.solution)


def _losses(sums: StageSums, chunk: int, budget: Fraction) -> Losses:
    """What to lose within the budget, and what each layer costs then."""
    problem = sums.sums(sums.counts(chunk), budget)
    report = solve(problem, Limits(time=SECONDS))
    if report.solution is None:  # the solver failed: nothing is lost
        report = solve(replace(problem, budget=Fraction(0)), Limits(), backend="closed")
    assert report.solution is not None
    return report.solution


def _prices(sums: StageSums, losses: Losses) -> Iterator[tuple[str, float]]:
    rows = zip(sums.names, losses.prices, sums.times.tolist(), sums.sizes.tolist(), strict=True)
    for name, price, time, size in rows:
        if price > NOTHING:
            yield name, price * time / size * MEGABYTE
