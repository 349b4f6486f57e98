"""Many micro-batches: the least period of a schedule without end, and steps made of it."""

from pipeplan_formulations.schedule.cyclic.drain import drain_bound
from pipeplan_formulations.schedule.cyclic.holding import period_bound, step_bound
from pipeplan_formulations.schedule.cyclic.pattern import Pattern
from pipeplan_formulations.schedule.cyclic.period import LeastPeriod, least_period, refined
from pipeplan_formulations.schedule.cyclic.stride import stride_bound
from pipeplan_formulations.schedule.cyclic.unrolled import patterns, solve, unrolled

__all__ = [
    "LeastPeriod",
    "Pattern",
    "drain_bound",
    "least_period",
    "patterns",
    "period_bound",
    "refined",
    "solve",
    "step_bound",
    "stride_bound",
    "unrolled",
]
