r"""The chain partition problem: which contiguous layers does each stage hold, and which of them does it recompute?

Given n layers in a row and S stages, stage s on r_s equal devices (its *replicas*), choose boundaries
0 = b_0 < b_1 < … < b_S = n; stage s holds the layers b_s … b_{s+1} − 1, and *cut* c = b_{s+1} − 1 lies on *link* s.

::

    layers   0   1   2 │ 3   4 │ 5   6   7         S = 3, b = (0, 3, 5, 8)
             ─ stage 0 ┼ stage 1 ┼ stage 2 ─
                   link 0     link 1
                   (cut 2)    (cut 4)

Sums over a stage's layers: F_s, B_s (forward, backward time of one micro-batch), U_s (update time), A_s (bytes saved
for backward), P_s (resident bytes), Z_s (largest workspace). At link s: f_s, g_s (least time to send activations
forward and gradients back), l_s (latency), c_s (time per micro-batch that the link is busy, in its busier direction if
it has two), r_{s+1} (bytes that stage s + 1 holds of what it received; r_0 = 0). Beyond the ends f_{S−1} = g_{−1} = 0.

Of M micro-batches the busiest replica of stage s works on M_s = ⌈M / r_s⌉, and the busiest wire of link s carries m_s.
Once a step a stage adds up its replicas' gradients and updates: E_s = R_s + U_s, where R_s = Σ reduce of its layers,
plus reduce_base if one of them reduces at all. A `Tie` whose layers are apart adds to R_s, U_s and P_s.

A stage recomputes some of its layers, X_s: each holds its output instead of what it saved, and has its forward once
more in B_s. X_s is no variable but a function of the span: of all sets that keep (1) it is one of least Σ forward, of
those one of fewest layers.

Memory, with k_s micro-batches in flight on a replica and Y_s the largest need of a second lane, for every stage:

(1)  P_s + k_s (A_s − Σ_{X_s} (saved − output) + r_s) + max(Z_s, max_{X_s} (saved + workspace)) + Y_s ≤ L_s

Time a device works on one micro-batch, where a device that cannot overlap also pays for what it sends:

(2)  w_s = F_s + B_s                        if transfers overlap
     w_s = F_s + B_s + f_s + g_{s−1}        otherwise

Objective ``bottleneck``: minimise T subject to

(3)  T ≥ ⌈(M_s w_s + R_s) / N⌉,   and, if transfers overlap,   T ≥ ⌊m_s c_s / N⌋,   N the samples of a step.

Objective ``step``: minimise the proven lower bound on the time of a synchronous step under *any* schedule ((8): any
that runs at most k_s forwards of a stage before its first backward, one action at a time). With

     p_t = F_t + l_t + f_t  (stream: without f_t)                  how much later stage t + 1 can start than stage t
     q_t = B_t + l_t + g_t  (stream: without; none: g_{t−1})       how much earlier its backwards must have ended

(4a) T ≥ Σ_{t<s} (p_t + q_t) + M_s w_s + E_0
(4b) T ≥ Σ_{t<s} p_t         + M_s w_s + E_s

(5)  T ≥ R + e   for every e below,   R = E_0 + Σ (p_t + q_t): one micro-batch alone, there and back
     copy      (M_s − 1) F_s,   (M_s − 1) B_s,   (m_s − 1) f_s,   (m_s − 1) g_s
     none      (M_s − 1) (F_s + f_s),   (M_s − 1) (B_s + g_{s−1})
     stream    (M_s − 1) F_s,   (M_s − 1) B_s,   m_s f_s − F_s,   m_s g_s − B_{s+1}

(6)  T ≥ q + Σ_s (α_s F_s + β_s B_s + υ_s U_s + ρ_s R_s) + Σ_s (φ_s f_s + γ_s g_s)   for each `PathCut`.

(8)  T ≥ R + max(M_s − k_s, 0) F_s + (M_s − 1) B_s       (none: F_s + f_s and B_s + g_{s−1}), if ``alternating``.

(9) T ≥ R + V − f_s   (copy, none),   T ≥ R + V − F_s   (stream)         for each `Wire` that the activations of link s
     T ≥ R + V − g_s   (copy, none),   T ≥ R + V − B_{s+1}   (stream)     or the gradients keep busy for V in a step
     T ≥ R + V + V' − (f_s + l_s + F_{s+1} + f_{s+1})                     and with V' for link s + 1 on the same wire
     T ≥ R + V + V' − (g_{s+1} + l_{s+1} + B_{s+1} + g_s)

Where backwards are split, ``backward`` is the gradient of the inputs, and V_s, the time of the weights' gradient, may
wait: it delays no other stage, and of each micro-batch it ends after the backward. It joins what follows the last
backward, in (4b) with all M_s of them, which says more than (4a) for stage 0 too, and in (8) those that must have
ended before the last forward, as k_s counts a micro-batch until its weight gradient has ended:

(12) E_0 + V_0 for E_0 in (4a), (5), (8), (9);   E_s + M_s V_s for E_s in (4b), s ≥ 0;   F_s + V_s for the F_s of (8).

Why they hold: (4) a replica of stage s waits for stages 0 … s − 1, then works M_s w_s; after its last backward the
gradient still travels back, and stage 0 ends its step (4a); or stage s itself does (4b). (5) is the same argument for
anything that serves micro-batches one by one in one direction. (6): a path through the actions of one given order is a
chain of things that follow one another whatever the partition. (8): between the first and the end of the last backward
of a replica lie all its backwards and all forwards but k_s. (9) is (5) for a wire whose transfers differ.
docs/bounds.md has the proofs; `memory` has (1) as code, `terms` (2), (4), (5) and (8), `objective` (3), (6) and (9).

All times are integers of one unit, all sizes integers of another.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from pipeplan_formulations.partition.bounds import largest, lower_bound
from pipeplan_formulations.partition.check import check
from pipeplan_formulations.partition.memory import Memory, SpanRecomputation
from pipeplan_formulations.partition.objective import value
from pipeplan_formulations.partition.parts import PathCut
from pipeplan_formulations.partition.tables import Boundaries, PartitionTables


@dataclass(frozen=True, kw_only=True)
class ChainPartition(PartitionTables):
    """One instance, checked, with its memory, its objective and its bounds. `PartitionTables` has the fields.

    Raises
    ------
    ValueError
        If shapes disagree, a number is out of range, n < S, or a word is not one of those above.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)

    @cached_property
    def room(self) -> Memory:
        """Equation (1) for arrays of spans."""
        return Memory(self)

    @cached_property
    def recomputing(self) -> SpanRecomputation:
        """What recomputation costs each span of layers."""
        return SpanRecomputation(self, self.room)

    def with_paths(self, paths: tuple[PathCut, ...]) -> "ChainPartition":
        """The same instance with these inequalities (6), and what was computed of it already."""
        other = replace(self, paths=paths)
        known = ("prefix", "through", "bytes", "room", "recomputing")
        other.__dict__.update({name: self.__dict__[name] for name in known if name in self.__dict__})
        return other

    def recompute(self, s: int, a: int, b: int) -> tuple[int, ...] | None:
        """X of stage s on the layers a … b − 1, in order; None if nothing fits."""
        return self.recomputing.choose(s, a, b)

    def memory(self, boundaries: Boundaries) -> tuple[int, ...]:
        """Left side of (1) for each stage, in bytes; where nothing fits, the least that any X reaches."""
        need = []
        for s, (a, b) in enumerate(pairwise(boundaries)):
            chosen = self.recompute(s, a, b)
            span = np.array(s), np.array(a), np.array(b)
            if chosen is None:
                need.append(int(self.room.least(*span)))
                continue
            rows = list(chosen)
            extra = max(int(self.bytes.again[s, rows].max(initial=0)) - int(self.bytes.workspace[s, a:b].max()), 0)
            saves = int(self.in_flight[s]) * int(self.bytes.savings[s, rows].sum())
            need.append(int(self.room.plain(*span)) + extra - saves)
        return tuple(need)

    def feasible(self, boundaries: Boundaries) -> bool:
        """Whether the boundaries are well formed, keep (1), and go where cuts and layers are allowed."""
        if (
            len(boundaries) != self.stages + 1
            or boundaries[0] != 0
            or boundaries[-1] != self.layers
            or any(a >= b for a, b in pairwise(boundaries))
        ):
            return False
        edges = np.array(boundaries)
        if self.cuts is not None and not self.cuts[edges[1:-1] - 1].all():
            return False
        spans = list(enumerate(pairwise(boundaries)))
        if self.where is not None and not all(self.where[s, a:b].all() for s, (a, b) in spans):
            return False
        return self.holds(boundaries)

    def holds(self, boundaries: Boundaries) -> bool:
        """Whether well-formed boundaries keep (1)."""
        edges = np.array(boundaries)
        return bool((self.room.least(np.arange(self.stages), edges[:-1], edges[1:]) <= self.limit).all())

    def evaluate(self, boundaries: Boundaries, optimistic: bool = False) -> int:
        """The least T that (2) to (9) allow; a stage that does not fit counts as if it recomputed nothing.

        ``optimistic`` takes less than the least recomputation where that is not known exactly: a bound on the value.
        """
        return value(self, boundaries, self.recomputing.of_partition(boundaries, optimistic))

    def lower_bound(self) -> int:
        """A bound that needs no solver, from each layer's fastest device; see `bounds`."""
        return lower_bound(self)

    @cached_property
    def largest(self) -> int:
        """No objective exceeds this; see `bounds`."""
        return largest(self)
