"""Which instances of a pipeline a search asks, and of which a solver's bound counts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeplan.found.instance import schedule_problem
from pipeplan.pipeline import Pipeline
from pipeplan_formulations.schedule import PipelineSchedule

APART = 0.02
"""Relative difference of a backward's parts from the whole above which both are looked at by themselves."""


@dataclass(frozen=True)
class Asked:
    """An instance, and whether it is the one that no schedule undercuts."""

    problem: PipelineSchedule
    bounds: bool


def asked(pipeline: Pipeline, micro_batches: int, least: PipelineSchedule) -> list[Asked]:
    """The instance ``least`` that no schedule undercuts and, where its orders may not fit or take longer than it says,
    those whose orders do.

    Those come first: what they find is a start for the other one.
    """
    found = [Asked(problem, False) for problem in _true(pipeline, micro_batches, least)]
    return [*found, Asked(least, True)]


def crowded(pipeline: Pipeline, problem: PipelineSchedule) -> Iterator[PipelineSchedule]:
    """The instance with tensors away longer, as if they waited for wires that several share; nothing if none do."""
    users: dict[str, int] = {}
    for ways in (*pipeline.transfers, *pipeline.returns):
        for way in ways:
            for wire in set(way.resources) if way.occupancy else ():
                users[wire] = users.get(wire, 0) + 1
    if max(users.values(), default=0) < 2:
        return
    for times in (1, 3):
        yield replace(
            problem,
            lag=tuple(
                lag + times * ways[0].occupancy for lag, ways in zip(problem.lag, pipeline.transfers, strict=True)
            ),
            lag_back=tuple(
                lag + times * ways[0].occupancy for lag, ways in zip(problem.lag_back, pipeline.returns, strict=True)
            ),
        )


def _true(pipeline: Pipeline, micro_batches: int, least: PipelineSchedule) -> Iterator[PipelineSchedule]:
    """Instances whose orders take as long as they say and fit."""
    safe = schedule_problem(pipeline, micro_batches, least.split, safe=True)
    splits = [stage for stage, cut in zip(pipeline.stages, least.split, strict=True) if cut]
    whole = sum(stage.backward for stage in splits)
    parts = sum(stage.input_gradient + stage.weight_gradient for stage in splits)
    if safe.base != least.base or abs(parts - whole) > APART * whole:
        yield safe
    if parts > (1 + APART) * whole:
        yield schedule_problem(pipeline, micro_batches, split=False, safe=True)
