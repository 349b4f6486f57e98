"""`Objective`: the words for what the problems of contiguous layers minimise."""

from typing import Literal

Objective = Literal["step", "period", "bottleneck", "delayed"]
"""The time of a step; from step to step in a long run; per sample of an endless pipeline; of its batches, whose sums of
gradients run beside the next batch."""

OBJECTIVES: tuple[Objective, ...] = ("step", "period", "delayed", "bottleneck")


def endless(objective: Objective) -> bool:
    """Whether the pipeline never drains: then T is the largest load."""
    return objective in ("bottleneck", "delayed")
