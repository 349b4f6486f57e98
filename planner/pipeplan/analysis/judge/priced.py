"""`priced`: a hand-written plan with the costs of a setting, simulated, and checked against memory."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from pipeplan.analysis.judge.hand_written import HandWritten
from pipeplan.analysis.judge.judgement import Overflow
from pipeplan.analysis.judge.settings import Setting
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.splits import CONTEXT, SEQUENCE
from pipeplan.costs.chain import UNLIMITED, Boundaries, Chain
from pipeplan.schedules import PLACED
from pipeplan.schedules.family import family_of
from pipeplan.search.build_plan import build_plan, shared_out
from pipeplan.search.evaluate import EvaluatedPlan, evaluate, overfull
from pipeplan.search.scheduling import find_schedule
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.outside import unable
from pipeplan.search.space.space import Space
from pipeplan.simulate.islands import longest_makespan
from pipeplan_formulations.common.report import Limits


@dataclass(frozen=True)
class Priced:
    """A hand-written plan in a setting.

    Attributes
    ----------
    plan : Plan
        Without a bound.
    evaluated : EvaluatedPlan
    limits : tuple of (int or None)
        Bytes that a device of each stage has; None is no limit.
    overflows : tuple of Overflow
    setting : Setting
        Where it has these costs.
    order_bound : int
        Nanoseconds that these stages take at least in any order; 0 where orders were not searched.
    """

    plan: Plan
    evaluated: EvaluatedPlan
    limits: tuple[int | None, ...]
    overflows: tuple[Overflow, ...]
    setting: Setting
    order_bound: int = 0

    @property
    def way(self) -> str:
        """How teams split layers, in a word."""
        if len(self.plan.mesh) > 1:
            return "x".join(map(str, self.plan.mesh))
        of = self.plan.parallelism
        return CONTEXT if CONTEXT in of else SEQUENCE if SEQUENCE in of else "plain"

    @property
    def rank(self) -> tuple[int, int]:
        """What of several ways is best: bytes that are missing, then time."""
        return sum(each.needed - each.limit for each in self.overflows), self.evaluated.value


def priced(model: Model, job: Job, setting: Setting, written: HandWritten) -> Priced:
    """Return the plan with the costs of a setting.

    Raises
    ------
    InputError
        If no such plan can be run.
    """
    space, boundaries = setting.space, written.boundaries(model)
    chain = _chain(setting, written, boundaries)
    if written.placed:
        evaluated = _placed(space, chain, boundaries, written)
        evaluated = replace(evaluated, value=longest_makespan(evaluated.schedule, evaluated.pipeline))
    else:
        evaluated = evaluate(space.cluster, space.candidates_of(chain, free=False)[0], boundaries)
    return _checked(model, job, setting, written, evaluated)


def least_rank(model: Model, setting: Setting, written: HandWritten) -> tuple[int, int]:
    """Return a lower bound on the rank of the plan, which takes no simulation: the busiest device computes so long.

    Raises
    ------
    InputError
        As `priced`.
    """
    boundaries = written.boundaries(model)
    chain, busy = _chain(setting, written, boundaries), Counter[int]()
    passes = chain.forward + chain.least_first_part + chain.least_second_part
    for s, (homes, (a, b)) in enumerate(zip(written.homes, pairwise(boundaries), strict=True)):
        own = int(passes[s, a:b].sum())
        busy.update(dict.fromkeys(homes, written.micro_batches // len(homes) * own))
    lists = overfull(_placed(setting.space, chain, boundaries, written)) if written.placed else ()
    return sum(needed - limit for _, needed, limit in lists), max(busy.values())


def _chain(setting: Setting, written: HandWritten, boundaries: Boundaries) -> Chain:
    """The costs of the plan's devices, or the error of `priced`."""
    space, groups = setting.space, setting.groups
    if not written.placed:
        why = unable(space, written.replicas, written.micro_batches)
        if why is not None:
            raise InputError(f"no such plan can be run: {why}")
        groups = space.placing.for_partition(groups, boundaries)
    return space.prices.chain(groups, space.job.batch // written.micro_batches)


def in_best_order(found: Priced, model: Model, job: Job, written: HandWritten, limits: Limits) -> Priced:
    """Return the plan with the best order of its actions that is found; itself if none fits into memory."""
    evaluated = found.evaluated
    best = find_schedule(evaluated.pipeline, written.micro_batches, limits)
    if best.schedule is None or best.value is None:
        return found
    family = family_of(best.schedule, "an order searched for these stages")
    ordered = EvaluatedPlan(
        evaluated.cluster, replace(evaluated.candidate, family=family), evaluated.boundaries, best.value
    )
    return replace(_checked(model, job, found.setting, written, ordered), order_bound=best.bound)


def _checked(model: Model, job: Job, setting: Setting, written: HandWritten, evaluated: EvaluatedPlan) -> Priced:
    """Return the plan of an evaluated one, checked against memory."""
    space, chain = setting.space, evaluated.candidate.chain
    plan = build_plan(space.model, space.cluster, replace(job, zero=(written.zero,)), evaluated, 0)
    plan = shared_out(plan, model, space.split)
    limits = tuple(None if limit == UNLIMITED else int(limit) for limit in chain.limit)
    too_large = _overfull(plan, evaluated) if written.placed else _overflows(plan, limits)
    return Priced(plan, evaluated, limits, tuple(too_large), setting)


def _overflows(plan: Plan, limits: tuple[int | None, ...]) -> Iterator[Overflow]:
    """Yield the stages that do not fit on devices of their own."""
    for number, (stage, limit) in enumerate(zip(plan.stages, limits, strict=True)):
        if limit is not None and stage.memory.total > limit:
            yield Overflow((number,), stage.devices, stage.memory.total, limit, plan.letter)


def _overfull(plan: Plan, evaluated: EvaluatedPlan) -> Iterator[Overflow]:
    """Yield the devices that do not hold all their stages at once, by their lists."""
    for rank, needed, limit in overfull(evaluated):
        yield Overflow(evaluated.pipeline.stages_on[rank], (plan.ranks[rank],), needed, limit, plan.letter)


def _placed(space: Space, chain: Chain, boundaries: Boundaries, written: HandWritten) -> EvaluatedPlan:
    """Return the plan under a family that places stages itself; without its time."""
    candidate = Candidate(
        chain.in_halves if PLACED[written.schedule].splits else chain,
        written.micro_batches,
        written.placing,
        space.job.objective,
        space.constraints.cuts,
        space.constraints.where(chain.groups),
        placement=written.homes,
    )
    return EvaluatedPlan(space.cluster, candidate, boundaries, 0)
