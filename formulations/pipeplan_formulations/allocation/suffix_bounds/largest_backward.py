r"""The alternation and the two-phase bound for one stage, given a range of the largest backward of all stages.

Let q = ⌊B / w⌋ be a stage's backward per unit, and y the stage with the largest q. A `LargestBackward` limits q_y and
the width v of y. Then B_s < (q_y + 1) w_s for every stage s, and the alternation bound for s and y reads

::

    y ≤ s     e ≥ (M_s − k_s) (F_s + B_s) + ⌊a / v⌋ B_y        a = m − (M_s − k_s) w_s
                                             ≥ a − lost, in units of q, lost ≥ a mod v
    s < y     e ≥ (M_y − k_y) F_y + (M_y − 1) B_y        which is the alternation bound for y itself

In the second case (k_y − 1) v ≤ (k_s − 1) w_s, or else k_s is all of M_s. This holds for every rule of in-flight
counts, because R_s ≥ R_y + w_s and counts are non-increasing. F_y is at least B_y / ρ, with ρ the largest ratio of B to
F in a layer. Let N = (M_y − 1) v, which is no less than ⌊(k_s − 1) w_s / v⌋ v if k_s is M_s, and
b = min((k_s − 1) w_s, N). Then either

    e ≥ (M_s − k_s) (F_s + B_s) + max(0, a − lost) q_y      or      e ≥ N q_y + (N − b) q_y / ρ.

If the programme distinguishes the `Side` of a stage on which y stands, only one of the two applies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.terms import micro_batches_behind, two_phase_delay
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.span_options import IMPOSSIBLE

Side = Literal["before", "here", "behind", "anywhere"]
"""Position of the stage with the largest backward relative to another stage; "here": it is that stage itself."""


@dataclass(frozen=True)
class LargestBackward:
    """A range of the largest backward per unit of all stages, q_y.

    Attributes
    ----------
    least, most : int
        Ends of the range, both included.
    widths : tuple of int
        The widths that stage y may have, ascending.
    last : int
        m of the alternation bound.
    rounds : int
        N: the least (M_v − 1) v over the widths.
    least_forward : int
        At most ``least`` / ρ: lower bound on F_y per unit.
    """

    least: int
    most: int
    widths: tuple[int, ...]
    last: int
    rounds: int
    least_forward: int

    def upper(self, width: int) -> int:
        """Upper bound on B of any stage of this width."""
        return (self.most + 1) * width - 1

    def lower(self, width: int) -> int:
        """Lower bound on B of stage y if it has this width; `IMPOSSIBLE` if it cannot."""
        return self.least * width if width in self.widths else IMPOSSIBLE

    def lost(self, many: int, width: int) -> int:
        """Upper bound on a mod v over all k and all widths v."""
        first = self.last - many * width
        return max(v - (g := gcd(v, width)) + first % g for v in self.widths)

    def allows(
        self, ceiling: int, many: int, width: int, fewest: Array | int, most: Array | int, work: Array, side: Side
    ) -> NDArray[np.bool_]:
        """True for stages whose delay of alternation may be at most the ceiling.

        ``work`` is F + B, ``fewest`` to ``most`` are the possible in-flight counts, ``side`` is the position of y.
        """
        # y before the stage: it still has ``left`` backwards, in units of q, when the stage ends its own.
        left = np.maximum(micro_batches_behind(self.last, many, fewest, width) - self.lost(many, width), 0)
        drained: NDArray[np.bool_] = (many - most) * work + left * self.least <= ceiling
        # y behind the stage: enough micro-batches in flight.
        early: NDArray[np.bool_] = np.asarray(most) >= self._behind(ceiling, width)
        return {
            "before": drained,
            "here": np.ones_like(drained),
            "behind": early | (work < 0),
            "anywhere": drained | early,
        }[side]

    def allows_phases(self, ceiling: int, many: int, width: int, forward: Array) -> NDArray[np.bool_]:
        """True for stages whose delay of two phases may be at most the ceiling."""
        below: NDArray[np.bool_] = two_phase_delay(many, forward, self.least * width) <= ceiling
        return below

    def needed(self, ceiling: int, many: int, width: int, held: Array, work: Array, side: Side) -> Array:
        """The least k, at least ``held``, for which the delay of alternation may be at most the ceiling."""
        if side == "here":
            return held
        early = np.maximum(held, self._behind(ceiling, width))
        if side == "behind":
            return early
        # ``left``: remaining backwards of y, in units of q, for k = M_s.
        left, each = self.last - self.lost(many, width), self.least
        # The least k with (M − k) (F + B) ≤ e.
        alone = np.maximum(held, np.where(work > 0, many - ceiling // np.maximum(work, 1), 0))
        # ``drop``: decrease of e per increment of k while remaining backwards count; then the least k for both terms.
        drop = work - width * each
        both = many - (ceiling - left * each) // np.maximum(drop, 1)
        # If e does not decrease with k, only the least candidate can be within the ceiling.
        fits = (many - alone) * work + np.maximum(left - (many - alone) * width, 0) * each <= ceiling
        drained = np.where(drop > 0, np.maximum(alone, both), np.where(fits, alone, IMPOSSIBLE))
        return drained if side == "before" else np.minimum(drained, early)

    def _behind(self, ceiling: int, width: int) -> int:
        """The least k of a stage for which y may stand behind it."""
        spare = ceiling - self.rounds * self.least
        if spare < 0:
            return IMPOSSIBLE
        if self.least_forward == 0:
            return 1
        return 1 + max(0, -(-(self.rounds - spare // self.least_forward) // width))


def largest_backward_between(problem: ChainAllocation, least: int, most: int, widths: Sequence[int]) -> LargestBackward:
    """The `LargestBackward` from ``least`` to ``most`` per unit, for a stage y of one of these widths."""
    again = np.where(problem.recomputable, problem.forward, 0)
    worst = (problem.backward + again) / np.maximum(problem.forward, 0.5)
    unknown = bool((problem.forward == 0)[problem.backward > 0].any())
    least_forward = 0 if unknown or not worst.any() else int((1 - 1e-12) * least / worst.max())
    return LargestBackward(least, most, tuple(widths), problem.last_batch, rounds(problem, widths), least_forward)


def rounds(problem: ChainAllocation, widths: Sequence[int]) -> int:
    """N: a stage of one of these widths has a delay e of at least N times its backward per unit."""
    return min((problem.share(width) - 1) * width for width in widths)
