"""`Objective`: the words for what the problems of contiguous layers minimise."""

from typing import Literal

Objective = Literal["step", "period", "bottleneck"]
"""The time of a step; the time from step to step in a long run; the time per sample of an endless pipeline."""

OBJECTIVES: tuple[Objective, ...] = ("step", "period", "bottleneck")
