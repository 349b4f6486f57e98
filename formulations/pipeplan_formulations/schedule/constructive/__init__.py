"""Constructive heuristic for pipeline schedules: a portfolio of list schedulers, then local search."""

from pipeplan_formulations.schedule.constructive.search import constructive

__all__ = ["constructive"]
