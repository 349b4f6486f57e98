"""A cut stronger than no-good: how far around a partition the same proof reaches.

What was proved of a partition follows from parts of it, and mostly from less than all: stages that hold at least the
same layers are no faster. So its box grows, boundary by boundary and to either side, as long as the box's relaxation
still proves as much; a step that succeeds is doubled, one that fails is halved.

::

    boundary 1   ·  ·  ·  ◀──P──▶  ·  ·        every partition in the box has the cores that prove the bound
    boundary 2   ·  ·  ·  ·  ◀P▶  ·  ·
"""

from collections.abc import Callable
from dataclasses import replace

from pipeplan_formulations.joint.box import Box

Proof = Callable[[Box], bool]
"""Whether all choices of a box are known to be worth as much as is asked."""


def grown(inner: Box, outer: Box, proof: Proof, more: Callable[[], bool] = lambda: True) -> Box:
    """The inner box, which is proved, stretched within the outer one; ``more`` says whether there is time for more."""
    steps = {(j, side): 1 for j in range(1, len(inner.low) - 1) for side in (-1, 1)}
    while steps:
        for (j, side), step in list(steps.items()):
            if not more():
                return inner
            wider = _stretched(inner, outer, j, side * step)
            if wider == inner:
                del steps[j, side]
            elif proof(wider):
                inner = wider
                steps[j, side] = 2 * step
            elif step > 1:
                steps[j, side] = step // 2
            else:
                del steps[j, side]
    return inner


def _stretched(inner: Box, outer: Box, j: int, step: int) -> Box:
    """Boundary j may lie further down (step < 0) or up."""
    low, high = list(inner.low), list(inner.high)
    low[j] = max(outer.low[j], min(low[j], low[j] + step))
    high[j] = min(outer.high[j], max(high[j], high[j] + step))
    return replace(inner, low=tuple(low), high=tuple(high))
