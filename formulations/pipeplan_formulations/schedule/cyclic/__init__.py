"""Cyclic scheduling for many micro-batches: the least period of an endless schedule, and steps built from it.

========  ===========================================================================
equation  functions
========  ===========================================================================
(6)       `holding.Holding.area`, `holding.period_bound`
(7)       `holding.Holding.step`, `holding.step_bound`
(8), (9)  `holding.step_bound`
(10)      `period._Frame.constraints` (no overlap)
(11)      `period._Frame.constraints`, `period._Frame._inputs`
(12)      `period._Frame.constraints` (order of micro-batches)
(13)      `period._Frame._held`
(14)      `period._Frame._area`
(15)      `drain.drain_bound`
(16)      `drain.drain_bound`, `drain._last_forward`
(17)      `stride.by_strides`, `stride.stride_bound`; D(n): `stride.stride`
========  ===========================================================================
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
