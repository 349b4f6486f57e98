"""Why a plan is no answer: it lies outside the searched space, or does not fit."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from pipeplan.core.job import SHARDED, Order
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, some
from pipeplan.costs.chain import Boundaries
from pipeplan.schedules.family import FOUND
from pipeplan.search.evaluate import EvaluatedPlan, overflow, overfull_in_lanes, sums_with_itself
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import aligned, shares_equally
from pipeplan.search.space.in_flight import InFlightBox
from pipeplan.search.space.space import Space

AT_LEAST = "and gradients that are one step late need as many at least: else weights of a third version are in use"


def outside(space: Space, evaluated: EvaluatedPlan) -> str | None:
    """Message why a plan lies outside the space or does not fit; None if it is a valid answer."""
    candidate, boundaries = evaluated.candidate, evaluated.boundaries
    beyond = unasked(space, candidate, boundaries)
    if beyond is None and space.unfolding is not None:
        joint = sums_with_itself(evaluated.pipeline)
        if joint is not None:
            return f"stages {_listed(joint)} sum shared weights in one collective, and some are on the same ranks"
        return next(map(_crowded, overfull_in_lanes(evaluated)), None)
    return overflow(candidate, boundaries) if beyond is None and not candidate.holds(boundaries) else beyond


def unasked(space: Space, candidate: Candidate, boundaries: Boundaries) -> str | None:
    """Message why a plan lies outside the space, without regard to memory; None if it lies inside."""
    job, widths, size = space.job, candidate.replicas, candidate.chain.micro_batch
    if candidate.chunks != space.model.rounds:
        return f"a device has {counted(candidate.chunks, 'stage')}, and not {space.model.rounds}"
    if job.depths and candidate.depth // candidate.chunks not in job.depths:
        wanted = _listed(depth * candidate.chunks for depth in job.depths)
        return f"it has {counted(candidate.depth, 'stage')}, asked for are {wanted}"
    refusal = unable(space, widths, candidate.micro_batches)
    if refusal is not None:
        return refusal
    if job.replicas and not set(widths) <= set(job.replicas):
        return f"its stages have {_listed(widths)} devices, asked for are {_listed(job.replicas)}"
    if job.equal_replicas and len(set(widths)) > 1:
        return f"its stages have {_listed(widths)} devices, asked for are equal numbers"
    if job.regular and not aligned(space.cluster, candidate.chain.groups):
        return "a stage has parts of several nodes, asked for are stages inside a node or on whole ones"
    if max(widths) > candidate.micro_batches:
        return f"{max(widths)} replicas of a stage share {counted(candidate.micro_batches, 'micro-batch')}"
    taken = list(candidate.ranks)
    if job.order is Order.GIVEN and taken != list(range(len(taken))):
        return f"it takes devices {_listed(taken)}, asked for are the first {len(taken)} in the given order"
    if size not in space.sizes or candidate.micro_batches * size != job.batch:
        return f"its micro-batches hold {size} samples, asked for are {_listed(space.sizes)}"
    if not lists(space, candidate):
        return f"its schedule is {candidate.family.name}, asked for are {', '.join(space.schedules)}"
    replicated = max(widths) > 1  # else all levels are alike
    if replicated and candidate.chain.zero != job.level:
        return f"it has level {candidate.chain.zero} of ZeRO, asked for is {job.level}"
    kind, whole = candidate.chain.groups[0][0].kind, not candidate.chain.halves
    if replicated and whole and not candidate.chain.overlaps and space.prices.sync.overlaps(kind, size):
        return "its gradients are summed behind the last backward, not beside it"
    edges = np.array(boundaries)
    if not candidate.cuts[edges[1:-1] - 1].all():
        return "it cuts the model where that is not allowed"
    if space.unfolding is not None and not space.unfolding.folding.folds(boundaries):
        return "its rounds are cut unlike, and those that are searched are cut otherwise"
    if not all(candidate.where[s, a:b].all() for s, (a, b) in enumerate(pairwise(boundaries))):
        return "a layer lies elsewhere than it is pinned"
    return None


def unable(space: Space, replicas: tuple[int, ...], micro_batches: int) -> str | None:
    """Message why stages of these replicas cannot run at the space's level of ZeRO; None if they can."""
    if space.job.staleness:
        if len(replicas) > micro_batches:
            return f"its {len(replicas)} stages have {counted(micro_batches, 'micro-batch')} a batch, {AT_LEAST}"
        shared = [r for r in replicas if not shares_equally(space.job, r, micro_batches)]
        return f"{shared[0]} replicas do not share {micro_batches} micro-batches equally" if shared else None
    if space.job.level < SHARDED:
        return None
    level = f"level {space.job.level} of ZeRO"
    if len(set(replicas)) > 1:
        return f"its stages have {_listed(replicas)} replicas, and at {level} equal numbers"
    if not shares_equally(space.job, replicas[0], micro_batches):
        return f"{replicas[0]} replicas do not share {counted(micro_batches, 'micro-batch')} equally"
    if len(replicas) > 1 and space.model.ties:
        return f"its stages may share weights of {', '.join(space.model.ties[0].layers)}, which {level} keeps on one"
    return None


def lists(space: Space, candidate: Candidate) -> bool:
    """Return True if the candidate's schedule is in the space."""
    if candidate.family.name == FOUND:
        return space.any_order
    if candidate.family.name in {each.name for each in space.families}:
        return True
    if not space.free or not candidate.family.alternates:
        return False
    return candidate.in_flight in InFlightBox.of(candidate.replicas, candidate.micro_batches)


def _crowded(rank: tuple[int, int, int]) -> str:
    number, needed, limit = rank
    return f"the stages of rank {number} need {format_bytes(needed)} of {format_bytes(limit)} together"


def _listed(numbers: Iterable[int]) -> str:
    return some([str(number) for number in dict.fromkeys(numbers)], 8)
