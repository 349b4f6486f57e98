"""Steps of many micro-batches: lower bounds that are cheap for many, and list schedules.

=======================  ============================================================
bound                    functions
=======================  ============================================================
holding                  `holding.Holding.area`, `holding.period_bound`
ramps                    `holding.Holding.step`, `holding.step_bound`
work                     `holding.step_bound`, `drain.drain_bound`
last round trip          `drain.drain_bound`, `drain._last_forward`
strides                  `stride.by_strides`, `stride.stride_bound`; D(n): `stride.stride`
=======================  ============================================================
"""

from pipeplan_formulations.schedule.long_steps.drain import drain_bound
from pipeplan_formulations.schedule.long_steps.holding import period_bound, step_bound
from pipeplan_formulations.schedule.long_steps.lists import NAME, solve
from pipeplan_formulations.schedule.long_steps.stride import stride_bound

__all__ = ["NAME", "drain_bound", "period_bound", "solve", "step_bound", "stride_bound"]
