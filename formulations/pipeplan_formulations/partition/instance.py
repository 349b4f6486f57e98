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
docs/bounds.md has the proofs; `terms` has (2), (4), (5) and (8) as code, `wire` (9).

All times are integers of one unit, all sizes integers of another.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition.check import check
from pipeplan_formulations.partition.floor import lower_bound
from pipeplan_formulations.partition.memory import Memory
from pipeplan_formulations.partition.objective import value
from pipeplan_formulations.partition.path_cut import PathCut
from pipeplan_formulations.partition.reach import largest
from pipeplan_formulations.partition.recomputing import Recomputing
from pipeplan_formulations.partition.stage_bytes import StageBytes
from pipeplan_formulations.partition.terms import Counts, Overlap
from pipeplan_formulations.partition.tie import Tie
from pipeplan_formulations.partition.wire import Wire

Array = NDArray[np.int64]
Flags = NDArray[np.bool_]
Boundaries = tuple[int, ...]


@dataclass(frozen=True)
class ChainPartition:
    """One instance. See the module's text for the meaning of each letter.

    Attributes
    ----------
    forward, backward, update : array of int, shape (S, n)
        F, B (nothing recomputed), U of each layer on each stage's device.
    send, send_back, link : array of int, shape (S − 1, n − 1)
        f, g, c of each cut on each link; where a link's wires differ, f and g on its fastest.
    latency : array of int, shape (S − 1,)
        Of the fastest wire.
    resident, saved, workspace : array of int, shape (n,) or (S, n)
        Bytes that add to P_s, A_s and Z_s; one row where they are the same on all stages' devices.
    received : array of int, shape (n − 1,) or (S − 1, n − 1)
        Bytes r of each cut, on each link.
    in_flight, limit : array of int, shape (S,)
        k_s and L_s.
    micro_batches : int
        M ≥ 1.
    overlap : 'none', 'copy' or 'stream'
    objective : 'step' or 'bottleneck'
    paths : tuple of PathCut
        Inequalities (6); only with objective 'step'.
    wires : tuple of Wire
        What (9) says; only with objective 'step'.
    counts : array of int, shape (S,), optional
        M_s; by default M.
    link_counts : array of int, shape (S − 1,), optional
        m_s. By default what is certain from M_s and M_{s+1}: the smaller where a neighbour has one replica, else 1.
    reduce : array of int, shape (S, n), optional
        What each layer adds to R_s; by default nothing.
    reduce_base : array of int, shape (S,), optional
        What R_s has besides, if a layer of the stage has ``reduce`` > 0; by default nothing.
    alternating : bool
        Whether (8) holds.
    warm_up : array of int, shape (S,), optional
        k_s of (8), where it may exceed that of (1): the most forwards of a replica before its first backward.
    output : array of int, shape (n,) or (S, n), optional
        Bytes that a recomputed layer holds for each micro-batch in flight.
    recomputable : array of bool, shape (n,), optional
        Layers that may be recomputed; by default none.
    samples : int, optional
        N of (3); by default M.
    weight : array of int, shape (S, n), optional
        V of each layer, where backwards are split; only with objective 'step' and without paths.
    ties : tuple of Tie
    beside : array of int, shape (n,) or (S, n), optional
        Bytes that a second lane needs for each layer, in Y_s; by default there is none.
    cuts : array of bool, shape (n − 1,), optional
        Which cuts are allowed; by default all.
    where : array of bool, shape (S, n), optional
        Which layers may lie on which stage; by default all on all.

    Raises
    ------
    ValueError
        If shapes disagree, a number is out of range, n < S, or a word is not one of those above.
    """

    forward: Array
    backward: Array
    update: Array
    send: Array
    send_back: Array
    link: Array
    latency: Array
    resident: Array
    saved: Array
    received: Array
    workspace: Array
    in_flight: Array
    limit: Array
    micro_batches: int
    overlap: Overlap = "copy"
    objective: Literal["step", "bottleneck"] = "step"
    paths: tuple[PathCut, ...] = ()
    wires: tuple[Wire, ...] = ()
    counts: Array | None = None
    link_counts: Array | None = None
    reduce: Array | None = None
    reduce_base: Array | None = None
    alternating: bool = False
    warm_up: Array | None = None
    output: Array | None = None
    recomputable: Flags | None = None
    samples: int | None = None
    weight: Array | None = None
    ties: tuple[Tie, ...] = ()
    beside: Array | None = None
    cuts: Flags | None = None
    where: Flags | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def stages(self) -> int:
        """S."""
        return int(self.forward.shape[0])

    @property
    def layers(self) -> int:
        """n."""
        return int(self.forward.shape[1])

    @property
    def divisor(self) -> int:
        """N."""
        return self.samples or self.micro_batches

    @cached_property
    def prefix(self) -> dict[str, Array]:
        """Sums along the layers: ``prefix[name][..., b] - prefix[name][..., a]`` is the sum of layers a … b − 1.

        Shape (S, n + 1); ``reduced`` counts the layers with ``reduce`` > 0.
        """
        reduce = np.zeros_like(self.forward) if self.reduce is None else self.reduce
        weight = np.zeros_like(self.forward) if self.weight is None else self.weight
        tables = {
            "forward": self.forward,
            "backward": self.backward,
            "update": self.update,
            "weight": weight,
            "resident": np.broadcast_to(self.resident, self.forward.shape),
            "saved": self.bytes.saved,
            "reduce": reduce,
            "reduced": reduce > 0,
        }
        return {name: np.insert(np.cumsum(t, axis=-1, dtype=np.int64), 0, 0, axis=-1) for name, t in tables.items()}

    @cached_property
    def through(self) -> tuple[Counts, ...]:
        """M_s, m_s, m_{s−1}, and the late forwards of (8), of each stage."""
        most = [self.micro_batches] * self.stages if self.counts is None else self.counts.tolist()
        single = [count == self.micro_batches for count in most]
        wires = [min(most[s], most[s + 1]) if single[s] or single[s + 1] else 1 for s in range(self.stages - 1)]
        wires = [1, *(wires if self.link_counts is None else self.link_counts.tolist()), 1]
        flight = np.maximum(self.in_flight if self.warm_up is None else self.warm_up, 1).tolist()
        late = [max(m - k, 0) if self.alternating else 0 for m, k in zip(most, flight, strict=True)]
        return tuple(Counts(most[s], late[s], wires[s + 1], wires[s]) for s in range(self.stages))

    @cached_property
    def base(self) -> Array:
        """``reduce_base``, zeros by default."""
        return np.zeros(self.stages, np.int64) if self.reduce_base is None else self.reduce_base

    @cached_property
    def bytes(self) -> StageBytes:
        """What layers hold on each stage's device."""
        return StageBytes.of(self)

    @cached_property
    def room(self) -> Memory:
        """Equation (1) for arrays of spans."""
        return Memory(self)

    @cached_property
    def recomputing(self) -> Recomputing:
        """What recomputation costs each span of layers."""
        return Recomputing(self)

    def with_paths(self, paths: tuple[PathCut, ...]) -> "ChainPartition":
        """The same instance with these inequalities (6), and what was computed of it already."""
        other = replace(self, paths=paths)
        known = ("prefix", "through", "base", "bytes", "room", "recomputing")
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
        """A bound that needs no solver, from each layer's fastest device; see `floor`."""
        return lower_bound(self)

    @cached_property
    def largest(self) -> int:
        """No objective exceeds this; see `reach`."""
        return largest(self)
