"""Boxes of choices: what is left of one when a smaller one is taken out, and how far a proof reaches.

::

    b_2 │ ┌───────────────────────┐         the box, the part Q that is taken out of it,
        │ │ 3          │   4      │         and the disjoint boxes that are left: first those whose
        │ │     ┌──────┤          │         b_1 is too small (1) or too large (2) for Q, then,
        │ │  1  │  Q   │   2      │         where b_1 suits it, those whose b_2 is not (3, 4)
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
"""Whether all choices of a box are known to be worth as much as is asked."""


@dataclass(frozen=True)
class Box:
    """Choices whose boundaries, counts and splits lie within these.

    Attributes
    ----------
    low, high : tuple of int, length S + 1
        Of every boundary, from 0 to n.
    fewest, most : tuple of int, length S
        Of the micro-batches that a stage has room for.
    split : tuple of bool or None, length S
        None where it is open.
    """

    low: Boundaries
    high: Boundaries
    fewest: Counts
    most: Counts
    split: tuple[bool | None, ...]

    @classmethod
    def whole(cls, problem: JointPipeline) -> Self:
        """All choices of a problem."""
        stages, n, most = problem.stages, problem.layers, problem.micro_batches
        low = (*range(stages), n)
        high = (0, *range(n - stages + 1, n + 1))
        return cls(low, high, (1,) * stages, (most,) * stages, (None,) * stages)

    @property
    def single(self) -> bool:
        """Whether it holds one partition."""
        return self.low == self.high

    def at(self, boundaries: Boundaries) -> "Box":
        """Its choices with these boundaries."""
        return replace(self, low=boundaries, high=boundaries)

    def tight(self) -> "Box | None":
        """Without ends that no row of growing boundaries has; None if nothing is left."""
        low, high = list(self.low), list(self.high)
        for j in range(1, len(low)):
            low[j] = max(low[j], low[j - 1] + 1)
        for j in reversed(range(len(high) - 1)):
            high[j] = min(high[j], high[j + 1] - 1)
        if any(a > b for a, b in zip((*low, *self.fewest), (*high, *self.most), strict=True)):
            return None
        return replace(self, low=tuple(low), high=tuple(high))

    def without(self, inner: "Box") -> Iterator["Box"]:
        """Disjoint boxes that make up the rest, when one that differs in boundaries only is taken out."""
        low, high = list(self.low), list(self.high)
        for j in range(1, len(low) - 1):
            for least, most in ((low[j], inner.low[j] - 1), (inner.high[j] + 1, high[j])):
                part = replace(self, low=put(low, j, least), high=put(high, j, most)).tight()
                if part is not None:
                    yield part
            low[j], high[j] = inner.low[j], inner.high[j]

    def where(self, layers: int) -> Flags:
        """Whether layer i may lie on stage s, (S, n)."""
        layer = np.arange(layers)
        begin, end = np.array(self.low[:-1])[:, None], np.array(self.high[1:])[:, None]
        inside: Flags = (begin <= layer) & (layer < end)
        return inside


def put(values: Sequence[int], j: int, value: int) -> tuple[int, ...]:
    """The numbers with another one in place j."""
    return (*values[:j], value, *values[j + 1 :])


def grown(inner: Box, outer: Box, proof: Proof, more: Callable[[], bool] = lambda: True) -> Box:
    """The inner box, which is proved, stretched within the outer one: a cut stronger than no-good.

    What was proved of a partition mostly follows from parts of it: stages that hold at least the same layers are no
    faster. So its box grows, boundary by boundary and to either side, as long as the box's relaxation still proves as
    much. A step that succeeds is doubled, one that fails is halved.

    ::

        boundary 1   ·  ·  ·  ◀──P──▶  ·  ·        every partition in the box has the cores that prove the bound
        boundary 2   ·  ·  ·  ·  ◀P▶  ·  ·

    ``more`` says whether there is time for more.
    """
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
