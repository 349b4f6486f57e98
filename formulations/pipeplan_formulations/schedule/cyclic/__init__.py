"""Cyclic scheduling for many micro-batches: the least period of an endless schedule, and steps built from it.

=======================  ============================================================
bound or constraint      functions
=======================  ============================================================
holding                  `holding.Holding.area`, `holding.period_bound`
ramps                    `holding.Holding.step`, `holding.step_bound`
work                     `holding.step_bound`, `drain.drain_bound`
last round trip          `drain.drain_bound`, `drain._last_forward`
strides                  `stride.by_strides`, `stride.stride_bound`; D(n): `stride.stride`
no overlap, order        `period._Frame.constraints`
inputs                   `period._Frame.constraints`, `period._Frame._inputs`
room                     `period._Frame._held`
area                     `period._Frame._area`
=======================  ============================================================
"""

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
