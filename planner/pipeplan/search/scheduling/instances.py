"""Which instances of a pipeline a search asks, and of which a solver's bound counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Kind
from pipeplan.search.scheduling.instance import may_have_lanes, schedule_problem
from pipeplan.search.scheduling.link_loads import wire_bound
from pipeplan.search.scheduling.lower_bound import relaxed_problem, schedule_lower_bound
from pipeplan_formulations.schedule import PipelineSchedule

APART = 0.02
"""Relative difference of a backward's parts from the whole above which both are looked at by themselves."""


@dataclass
class Side:
    """All schedules with so many lanes a device.

    Attributes
    ----------
    two_lanes : bool
    least : PipelineSchedule
        The instance that none of them undercuts.
    bound : int
        What is proved of it.
    """

    two_lanes: bool
    least: PipelineSchedule
    bound: int


@dataclass(frozen=True)
class Asked:
    """An instance, and whether it is the one that no schedule of its side undercuts."""

    problem: PipelineSchedule
    side: Side
    bounds: bool


def sides(pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool]) -> list[Side]:
    """Two lanes, where devices may have them, then one."""
    found = []
    for two_lanes in (True, False) if may_have_lanes(pipeline) else (False,):
        least = relaxed_problem(pipeline, micro_batches, split, two_lanes=two_lanes)
        bound = max(schedule_lower_bound(least), wire_bound(pipeline, micro_batches, split, two_lanes=two_lanes))
        found.append(Side(two_lanes, least, bound))
    return found


def asked(pipeline: Pipeline, micro_batches: int, side: Side) -> list[Asked]:
    """The instance that no schedule undercuts and, where its orders may not fit or take longer than it says, those
    whose orders do.

    Those come first: what they find is a start for the other one. So is what the latter says if its wires are always
    free, a relaxation that is much easier where there are many micro-batches.
    """
    found = [Asked(problem, side, False) for problem in _true(pipeline, micro_batches, side)]
    if side.least.sent:
        found.append(Asked(side.least.unshared, side, True))
    return [*found, Asked(side.least, side, True)]


def crowded(problem: PipelineSchedule, waits: int) -> PipelineSchedule:
    """The problem without wires, each tensor away longer by so many of the times that it occupies its own."""

    def longer(away: tuple[int, ...], occupancy: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(way + waits * time for way, time in zip(away, occupancy, strict=True)) if occupancy else away

    return replace(
        problem.unshared,
        lag=longer(problem.in_transit, problem.occupancy),
        lag_back=longer(problem.in_transit_back, problem.occupancy_back),
    )


def _true(pipeline: Pipeline, micro_batches: int, side: Side) -> Iterator[PipelineSchedule]:
    """Instances whose orders take as long as they say and fit."""
    least, lanes = side.least, side.two_lanes
    safe = schedule_problem(pipeline, micro_batches, least.split, safe=True, two_lanes=lanes)
    whole, parts = 0, 0
    for s, stage in enumerate(pipeline.stages):
        if least.split[s]:
            whole += stage.total(Kind.BACKWARD)
            parts += stage.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    unlike = (safe.base, safe.wires_back) != (least.base, least.wires_back)
    if unlike or abs(parts - whole) > APART * whole:
        yield safe
    if parts > (1 + APART) * whole:
        yield schedule_problem(pipeline, micro_batches, split=False, safe=True, two_lanes=lanes)
