"""Forwards and backwards of a pipeline's stages to an order on every device."""

from pipeplan_formulations.schedule.evaluate import evaluate, feasible
from pipeplan_formulations.schedule.problem import Kind, Op, Orders, PipelineSchedule

__all__ = ["Kind", "Op", "Orders", "PipelineSchedule", "evaluate", "feasible"]
