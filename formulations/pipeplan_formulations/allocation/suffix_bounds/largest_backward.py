r"""Equations (5) and (6) seen from one stage, when something is known of the stage with the largest backward of all.

Let q = ⌊B / w⌋ be a stage's backward for each of its units, and y the stage with the largest q. A *peak* says between
what q_y lies, and between what the width v of y. Then B_s < (q_y + 1) w_s for every stage s, and (5) for s and y reads

::

    y ≤ s     e ≥ (M_s − k_s) (F_s + B_s) + ⌊a / v⌋ B_y        a = m − (M_s − k_s) w_s
                                             ≥ a − lost, in units of q, lost ≥ a mod v
    s < y     e ≥ (M_y − k_y) F_y + (M_y − 1) B_y        which is (5) for y itself

In the second case (k_y − 1) v ≤ (k_s − 1) w_s, or else k_s is all of M_s: that is so for every rule of in-flight
counts, as R_s ≥ R_y + w_s, and as counts fall. And F_y is at least B_y / ρ, ρ the largest ratio of B to F in a layer.
With b = min((k_s − 1) w_s, N) and N = (M_y − 1) v, which is no less than ⌊(k_s − 1) w_s / v⌋ v if k_s is M_s, either

    e ≥ (M_s − k_s) (F_s + B_s) + max(0, a − lost) q_y      or      e ≥ N q_y + (N − b) q_y / ρ.

The programme knows which, where it is told on which `Side` of the stages it looks at y stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.terms import behind, two_phases
from pipeplan_formulations.common.recomputation import IMPOSSIBLE

Side = Literal["before", "here", "behind", "anywhere"]
"""Where the stage with the largest backward stands, seen from another one; "here": it is that one itself."""


@dataclass(frozen=True)
class LargestBackward:
    """The largest backward of all stages, for each unit of its stage, is from ``least`` to ``most``.

    Attributes
    ----------
    widths : tuple of int
        The widths that its stage may have, ascending.
    last : int
        m of (5).
    rounds : int
        N: units of its width times micro-batches after the first, at least.
    front : int
        No more than ``least`` / ρ.
    """

    least: int
    most: int
    widths: tuple[int, ...]
    last: int
    rounds: int
    front: int

    def largest(self, width: int) -> int:
        """The largest backward that a stage of this width has."""
        return (self.most + 1) * width - 1

    def smallest(self, width: int) -> int:
        """The least backward that its own stage has; `IMPOSSIBLE` if it has another width."""
        return self.least * width if width in self.widths else IMPOSSIBLE

    def lost(self, many: int, width: int) -> int:
        """No less than a mod v for any k."""
        first = self.last - many * width
        return max(v - (g := gcd(v, width)) + first % g for v in self.widths)

    def holds(
        self, ceiling: int, many: int, width: int, fewest: Array | int, most: Array | int, work: Array, side: Side
    ) -> NDArray[np.bool_]:
        """Whether stages of F + B = ``work`` with ``fewest`` to ``most`` in flight may stay below it by (5)."""
        left = np.maximum(behind(self.last, many, fewest, width) - self.lost(many, width), 0)
        drained: NDArray[np.bool_] = (many - most) * work + left * self.least <= ceiling
        early: NDArray[np.bool_] = np.asarray(most) >= self._behind(ceiling, width)
        return {
            "before": drained,
            "here": np.ones_like(drained),
            "behind": early | (work < 0),
            "anywhere": drained | early,
        }[side]

    def phased(self, ceiling: int, many: int, width: int, forward: Array) -> NDArray[np.bool_]:
        """Whether stages may stay below the ceiling by (6)."""
        below: NDArray[np.bool_] = two_phases(many, forward, self.least * width) <= ceiling
        return below

    def needed(self, ceiling: int, many: int, width: int, held: Array, work: Array, side: Side) -> Array:
        """The least k, no less than ``held``, with which (5) may stay below the ceiling."""
        if side == "here":
            return held
        early = np.maximum(held, self._behind(ceiling, width))
        if side == "behind":
            return early
        left, each = self.last - self.lost(many, width), self.least  # were all rounds over, k being M_s
        alone = np.maximum(held, np.where(work > 0, many - ceiling // np.maximum(work, 1), 0))  # (M − k) (F + B) ≤ e
        drop = work - width * each  # by so much falls e with another k, once a exceeds what is lost
        non_increasing = many - (ceiling - left * each) // np.maximum(drop, 1)
        fits = (many - alone) * work + np.maximum(left - (many - alone) * width, 0) * each <= ceiling
        drained = np.where(drop > 0, np.maximum(alone, non_increasing), np.where(fits, alone, IMPOSSIBLE))
        return drained if side == "before" else np.minimum(drained, early)

    def _behind(self, ceiling: int, width: int) -> int:
        """The least k with which the peak may lie behind."""
        spare = ceiling - self.rounds * self.least
        if spare < 0:
            return IMPOSSIBLE
        if self.front == 0:
            return 1
        return 1 + max(0, -(-(self.rounds - spare // self.front) // width))


def largest_backward_between(problem: ChainAllocation, least: int, most: int, widths: Sequence[int]) -> LargestBackward:
    """The largest backward lies there, for each unit, and its stage has one of these widths."""
    again = np.where(problem.recomputable, problem.forward, 0)
    worst = (problem.backward + again) / np.maximum(problem.forward, 0.5)
    unknown = bool((problem.forward == 0)[problem.backward > 0].any())
    front = 0 if unknown or not worst.any() else int((1 - 1e-12) * least / worst.max())
    return LargestBackward(least, most, tuple(widths), problem.last_batch, rounds(problem, widths), front)


def rounds(problem: ChainAllocation, widths: Sequence[int]) -> int:
    """N: a stage of one of these widths has no e below N times its backward for each unit."""
    return min((problem.share(width) - 1) * width for width in widths)
