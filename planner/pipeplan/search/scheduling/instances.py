"""Scheduling instances that a search solves for one pipeline: relaxations, which give bounds, and exact ones.

Orders of an exact instance fit the pipeline and take as long as the instance states. A relaxation is below all
schedules of the pipeline, so a solver's bound on it holds for all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind
from pipeplan.search.scheduling.instance import may_have_lanes, schedule_problem
from pipeplan.search.scheduling.link_bound import link_bound
from pipeplan.search.scheduling.lower_bound import relaxed_problem, schedule_lower_bound
from pipeplan_formulations.schedule import PipelineSchedule

APART = 0.02
"""Relative difference between I + W and B above which split and joined backwards get instances of their own."""


@dataclass
class LaneMode:
    """All schedules with one lane per device, or all with two.

    Attributes
    ----------
    two_lanes : bool
    least : PipelineSchedule
        The instance below all of these schedules.
    bound : int
        Proven lower bound on their makespans, in nanoseconds.
    """

    two_lanes: bool
    relaxation: PipelineSchedule
    bound: int


@dataclass(frozen=True)
class Subproblem:
    """An instance to solve. ``bounds``: it is a relaxation of all schedules of its lane mode."""

    problem: PipelineSchedule
    mode: LaneMode
    bounds: bool


def lane_modes(pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool]) -> list[LaneMode]:
    """The lane modes of a pipeline: two lanes, where devices may have them, then one."""
    found = []
    for two_lanes in (True, False) if may_have_lanes(pipeline) else (False,):
        least = relaxed_problem(pipeline, micro_batches, split, two_lanes=two_lanes)
        bound = max(schedule_lower_bound(least), link_bound(pipeline, micro_batches, split, two_lanes=two_lanes))
        found.append(LaneMode(two_lanes, least, bound))
    return found


def subproblems(pipeline: Pipeline, micro_batches: int, mode: LaneMode) -> list[Subproblem]:
    """The relaxation of a lane mode and, where its orders may not fit or may take longer, exact instances.

    Exact instances come first: their solutions are starts for the relaxation. Another start is the relaxation with link
    resources that are always free, which is much easier where there are many micro-batches.
    """
    found = [Subproblem(problem, mode, False) for problem in _exact_instances(pipeline, micro_batches, mode)]
    if mode.relaxation.sent:
        found.append(Subproblem(mode.relaxation.unshared, mode, True))
    return [*found, Subproblem(mode.relaxation, mode, True)]


def _exact_instances(pipeline: Pipeline, micro_batches: int, mode: LaneMode) -> Iterator[PipelineSchedule]:
    """Yield instances whose orders fit the pipeline and take as long as they state."""
    least, lanes = mode.relaxation, mode.two_lanes
    safe = schedule_problem(pipeline, micro_batches, least.split, safe=True, two_lanes=lanes)
    whole, parts = 0, 0
    for s, stage in enumerate(pipeline.stages):
        if least.split[s]:
            whole += stage.total(Kind.BACKWARD)
            parts += stage.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    unlike = (safe.base, safe.resources_back) != (least.base, least.resources_back)
    if unlike or abs(parts - whole) > APART * whole:
        yield safe
    if parts > (1 + APART) * whole:
        yield schedule_problem(pipeline, micro_batches, split=False, safe=True, two_lanes=lanes)
