"""Where the solvers begin: the best orders known without them."""

from importlib import import_module

from pipeplan_formulations.schedule.evaluate import evaluate, feasible
from pipeplan_formulations.schedule.problem import Orders, PipelineSchedule
from pipeplan_formulations.schedule.serial import serial

SHARE = 0.1
"""Part of the time limit that list scheduling may take."""


def start(problem: PipelineSchedule, hint: Orders | None, seconds: float) -> Orders:
    """The best of the hint, if it is feasible, the list schedulers' within so many seconds, and one after the other."""
    known = [serial(problem)]
    if hint is not None and feasible(problem, hint):
        known.append(hint)
    found = import_module("pipeplan_formulations.schedule.constructive").constructive(problem, seconds)
    if found is not None:
        known.append(found[1])
    return min(known, key=lambda orders: _value(problem, orders))


def _value(problem: PipelineSchedule, orders: Orders) -> int:
    value = evaluate(problem, orders)
    if value is None:
        raise ValueError("the orders to start from are not feasible")
    return value
