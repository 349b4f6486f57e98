"""Boxes of choices: intervals of boundaries and in-flight counts, their differences, and extension of a proof.

::

    b_2 │ ┌───────────────────────┐         the box, the part Q that is removed from it, and the
        │ │ 3          │   4      │         disjoint boxes that remain: first those whose b_1 is
        │ │     ┌──────┤          │         below (1) or above (2) the interval of Q, then those
        │ │  1  │  Q   │   2      │         with b_1 within it and b_2 outside (3, 4)
        │ └─────┴──────┴──────────┘
        └───────────────────────────  b_1
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pipeplan_formulations.common.layer_tables import Flags
from pipeplan_formulations.joint.instance import JointPipeline
from pipeplan_formulations.partition import Boundaries

Counts = tuple[int, ...]
Proof = Callable[["Box"], bool]
"""Test of a box: True if the required lower bound is proved for all its choices."""


@dataclass(frozen=True)
class Box:
    """Set of choices with boundaries, counts and splits within intervals.

    Attributes
    ----------
    low, high : tuple of int, length S + 1
        Range of every boundary, from 0 to n.
    fewest, most : tuple of int, length S
        Range of the in-flight count of each stage.
    split : tuple of bool or None, length S
        None if it is open.
    """

    low: Boundaries
    high: Boundaries
    fewest: Counts
    most: Counts
    split: tuple[bool | None, ...]

    @classmethod
    def whole(cls, problem: JointPipeline) -> Self:
        """Box of all choices of a problem."""
        stages, n, most = problem.stages, problem.layers, problem.micro_batches
        low = (*range(stages), n)
        high = (0, *range(n - stages + 1, n + 1))
        return cls(low, high, (1,) * stages, (most,) * stages, (None,) * stages)

    @property
    def single(self) -> bool:
        """True if the box holds one partition."""
        return self.low == self.high

    def at(self, boundaries: Boundaries) -> "Box":
        """Subset of the choices with these boundaries."""
        return replace(self, low=boundaries, high=boundaries)

    def tight(self) -> "Box | None":
        """Box without ends that no increasing sequence of boundaries has; None if it is empty."""
        low, high = list(self.low), list(self.high)
        for j in range(1, len(low)):
            low[j] = max(low[j], low[j - 1] + 1)
        for j in reversed(range(len(high) - 1)):
            high[j] = min(high[j], high[j + 1] - 1)
        if any(a > b for a, b in zip((*low, *self.fewest), (*high, *self.most), strict=True)):
            return None
        return replace(self, low=tuple(low), high=tuple(high))

    def without(self, inner: "Box") -> Iterator["Box"]:
        """Disjoint boxes that cover the difference to ``inner``, which differs in boundaries only."""
        low, high = list(self.low), list(self.high)
        for j in range(1, len(low) - 1):
            for least, most in ((low[j], inner.low[j] - 1), (inner.high[j] + 1, high[j])):
                part = replace(self, low=put(low, j, least), high=put(high, j, most)).tight()
                if part is not None:
                    yield part
            low[j], high[j] = inner.low[j], inner.high[j]

    def where(self, layers: int) -> Flags:
        """Table of shape (S, n): True if layer i may lie on stage s."""
        layer = np.arange(layers)
        begin, end = np.array(self.low[:-1])[:, None], np.array(self.high[1:])[:, None]
        inside: Flags = (begin <= layer) & (layer < end)
        return inside


def put(values: Sequence[int], j: int, value: int) -> tuple[int, ...]:
    """Copy of ``values`` with entry j replaced."""
    return (*values[:j], value, *values[j + 1 :])


def grown(inner: Box, outer: Box, proof: Proof, more: Callable[[], bool] = lambda: True) -> Box:
    """Extend the inner box, whose bound is proved, within the outer one: a cut stronger than a no-good.

    The bound of a partition mostly follows from parts of it: stages that hold at least the same layers are no faster.
    So its box grows, boundary by boundary and to either side, as long as the box's relaxation still proves the bound. A
    step that succeeds is doubled, one that fails is halved.

    ::

        boundary 1   ·  ·  ·  ◀──P──▶  ·  ·        every partition in the box has the cores that prove the bound
        boundary 2   ·  ·  ·  ·  ◀P▶  ·  ·

    ``more`` returns True while there is time to continue.
    """
    # Step width of every boundary and direction that can still grow.
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
    """Box with the interval of boundary j extended down (step < 0) or up, within the outer box."""
    low, high = list(inner.low), list(inner.high)
    low[j] = max(outer.low[j], min(low[j], low[j] + step))
    high[j] = min(outer.high[j], max(high[j], high[j] + step))
    return replace(inner, low=tuple(low), high=tuple(high))
