r"""The chain allocation problem: how many stages, of which layers, on how many devices of which kind?

Given n layers in a row and C kinds of devices. Kind c has units_c *units* of ``unit`` devices each. A stage is a run of
layers a … b − 1 on w units of one kind: r = w · unit replicas that take micro-batches in turn, M_w = ⌈M / r⌉ each at
most. Units may stay unused.

::

    layers   0   1   2 │ 3   4   5   6 │ 7   8        three stages: (0, 3, kind 0, width 1)
             ─ stage 0 ┼─── stage 1 ───┼ stage 2                    (3, 7, kind 1, width 2)
    units    0:1         1:2             0:1                        (7, 9, kind 0, width 1)
    usage    (2, 2)      (1, 2)          (1, 0)       units of each kind from a stage on, counted from the end

The usage u from a stage on tells how many micro-batches a replica holds, with R the sum of u over the kinds,

(1)  k = min(M_w, ⌈R / w⌉)   ``sno``,   ⌈(2 R − w) / w⌉   ``so``,   ⌈2 R / w⌉   ``fbp``,   M_w   ``full``,
     or whatever is best from that of ``sno`` to that of ``so``, if counts fall from stage to stage   ``falling``
     (see `falling`),

and whether a hop between two stages of kind c leaves a node: it does if the usage of kind c behind it is a multiple of
node_c. Elsewhere some pair of replicas shares a node, and the hop counts as one inside it.

Memory (2), with X the layers recomputed, which is the cheapest set that fits (`Recomputation`):

(2)  resident + k (Σ_{l∉X} saved + Σ_{l∈X} output + received)
              + max(max workspace, max_{l∈X} (saved + workspace)) ≤ limit

With F forward, B backward (and the forwards of X) of a stage for one micro-batch, f, g, l the sends and the latency of
the hop behind it, ĝ the least send that the hop before it may cost back, E_0 the first stage's gradient reduction and
update, the objective ``step`` is the least T with

(3)  T ≥ E_0 + H_s + M_w (F + B)                            if devices compute while they send
     T ≥ E_0 + H_s + M_w (F + B + f) + (M_w − 1) ĝ          if they wait (none)
     H_{s+1} = H_s + F + B + 2 l + f + g                    without f + g if tensors leave while they are made (stream)

(4)  T ≥ E_0 + A + e,   A = H_{S−1} + F_{S−1} + B_{S−1}: one micro-batch alone, there and back; for each e of
     (M_w − 1) F,   (M_w − 1) B                             with F + f and B + ĝ instead if they wait
     max(M_w − k, 0) F + (M_w − 1) B                        likewise, if at most k forwards precede a first backward
     (L_w − 1) f,   (L_w − 1) g                             copy
     L_w f − F,   L_w ĝ − B                                 stream

Lists that alternate also obey (5), and with one width those of ``phases``, all forwards first, obey (6):

(5)  T ≥ E_0 + A + (M_s − k_s) (F_s + B_s) + ⌊(m − (M_s − k_s) w_s) / w_t⌋ B_t      for t ≤ s, M_s short for M_w of its
     width, m = ⌊(M − 1) / unit⌋
(6)  T ≥ E_0 + A + (M_w − 1) (F_s + B_t)

where a wire between two replicas carries at least L_w = min_{w'} ⌈M / lcm(w, w')⌉ (in devices) micro-batches. The
objective ``bottleneck`` is the largest ⌈(M_w (F + B) + R) / N⌉ (F + B + f + ĝ if devices wait), R the stage's gradient
reduction, and, if they do not wait, ⌊L_w max(f, g) / N⌋: time per sample of an endless pipeline, N samples a step.

Why these are bounds for every plan of the space is told in docs/bounds.md. All times are integers of one unit, all
sizes integers of another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.check import check
from pipeplan_formulations.allocation.falling import falls
from pipeplan_formulations.allocation.objective import evaluate
from pipeplan_formulations.allocation.place import Allocation, Mode, Place
from pipeplan_formulations.allocation.terms import Overlap
from pipeplan_formulations.allocation.wires import wire_shares
from pipeplan_formulations.common.recomputation import Recomputation

Array = NDArray[np.int64]
Flight = Literal["sno", "so", "fbp", "full", "falling"]


@dataclass(frozen=True)
class ChainAllocation:
    """One instance. See the module's text for the meaning of each letter.

    Attributes
    ----------
    forward, backward : array of int, shape (C, n)
        For one micro-batch.
    update, reduce, resident : array of int, shape (C, W, n)
        Per kind, index into ``widths``, and layer: they differ by width where state is sharded over replicas.
    reduce_base : array of int, shape (C, W)
        Part of the reduction that does not grow with bytes, paid by a stage of which some layer has ``reduce`` > 0.
    saved, output, workspace : array of int, shape (n,)
    recomputable : array of bool, shape (n,)
    received : array of int, shape (n − 1,)
        Bytes of each cut that the stage behind it holds for a micro-batch.
    limit, units, node : array of int, shape (C,)
        Bytes of a device; units of a kind; units in a node of it (more than there are: hops never leave it).
    send, send_back : array of int, shape (C, C, 2, n − 1)
        f and g by kind before the hop, kind behind it, whether it leaves a node (0 or 1), and cut. Between unlike kinds
        only entry 1 is used. For (3) to (5) to be bounds entry 0 must not exceed entry 1, unless 1 is the only width.
    latency : array of int, shape (C, C, 2)
    widths : tuple of int
        Units that a stage may have, ascending.
    micro_batches, unit : int
        M, and devices in a unit.
    samples : int, optional
        N; by default M.
    overlap : 'none', 'copy' or 'stream'
    objective : 'step' or 'bottleneck'
    flight : 'sno', 'so', 'fbp', 'full' or 'falling'
    alternating : bool
        Whether the third e of (4) holds: no stage runs more than k forwards before its first backward.
    phases : bool
        Whether every replica runs all its forwards before its first backward, as in GPipe.
    cuts : array of bool, shape (n − 1,)
        Cuts that are allowed.
    first, last : tuple of (kind, width)
        Modes of the first and of the last stages, in the order of the stages. There are at least so many stages.

    Raises
    ------
    ValueError
        If shapes disagree, a number is negative, times add up beyond 64 bits, or a word is not one of those above.
    """

    forward: Array
    backward: Array
    update: Array
    reduce: Array
    resident: Array
    reduce_base: Array
    saved: Array
    output: Array
    workspace: Array
    recomputable: NDArray[np.bool_]
    received: Array
    limit: Array
    units: Array
    node: Array
    send: Array
    send_back: Array
    latency: Array
    cuts: NDArray[np.bool_]
    micro_batches: int
    widths: tuple[int, ...] = (1,)
    unit: int = 1
    overlap: Overlap = "copy"
    objective: Literal["step", "bottleneck"] = "step"
    flight: Flight = "sno"
    alternating: bool = True
    phases: bool = False
    first: tuple[Mode, ...] = ()
    last: tuple[Mode, ...] = ()
    samples: int | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def kinds(self) -> int:
        """C."""
        return int(self.forward.shape[0])

    @property
    def layers(self) -> int:
        """n."""
        return int(self.forward.shape[1])

    @property
    def drains(self) -> bool:
        """Whether (5) or (6) is asked for."""
        return self.objective == "step" and (self.alternating or (self.phases and len(self.widths) == 1))

    @property
    def divisor(self) -> int:
        """N."""
        return self.samples or self.micro_batches

    @property
    def chooses(self) -> bool:
        """Whether k is a choice."""
        return self.flight == "falling"

    def share(self, width: int) -> int:
        """M_w: most micro-batches that a replica of a stage of this width takes."""
        return -(-self.micro_batches // (width * self.unit))

    @property
    def last_batch(self) -> int:
        """m of (5): units of micro-batches before the last one."""
        return (self.micro_batches - 1) // self.unit

    def in_flight(self, total: Array, width: int) -> Array:
        """k of (1), the least if there is a choice, for ``total`` units from the stage on."""
        return self._rule("sno" if self.chooses else self.flight, total, width)

    def most_in_flight(self, total: Array, width: int) -> Array:
        """The largest k of (1), for ``total`` units from the stage on."""
        return self._rule("so" if self.chooses else self.flight, total, width)

    def _rule(self, flight: str, total: Array, width: int) -> Array:
        if flight == "full":
            return np.full_like(total, self.share(width))
        held = {"sno": total, "so": 2 * total - width, "fbp": 2 * total}[flight]
        rule: Array = np.minimum(-(-held // width), self.share(width))
        return rule

    @cached_property
    def prefix(self) -> dict[str, Array]:
        """Sums along the layers: ``prefix[name][..., b] - prefix[name][..., a]`` is the sum of layers a … b − 1."""
        names = ("forward", "backward", "update", "reduce", "resident", "saved")
        return {name: np.insert(np.cumsum(getattr(self, name), axis=-1), 0, 0, axis=-1) for name in names}

    @cached_property
    def wire_shares(self) -> dict[int, int]:
        """L_w of each width."""
        return wire_shares(self.widths, self.unit, self.micro_batches)

    @cached_property
    def least_back(self) -> Array:
        """ĝ by the kind behind the hop, whether a hop from its own kind would leave a node, and cut: (C, 2, n − 1)."""
        least = np.stack([self.send_back[c, c] for c in range(self.kinds)])
        for c in range(self.kinds):
            for before in range(self.kinds):
                if before != c:
                    least[c] = np.minimum(least[c], self.send_back[before, c, 1])
        return least

    @cached_property
    def recomputations(self) -> tuple[Recomputation, ...]:
        """For each kind, the least recomputation of every span."""
        return tuple(
            Recomputation(
                forward, self.saved - self.output, self.workspace, self.saved + self.workspace, self.recomputable
            )
            for forward in self.forward
        )

    def spare(self, start: int, end: int, kind: int, width: int, in_flight: Array) -> Array:
        """Bytes that (2) leaves to workspace, with nothing recomputed."""
        resident = self.prefix["resident"][kind, self.widths.index(width)]
        held = self.prefix["saved"][end] - self.prefix["saved"][start] + (self.received[start - 1] if start else 0)
        left: Array = self.limit[kind] - (resident[end] - resident[start]) - in_flight * held
        return left

    def usages(self, stages: Allocation) -> list[tuple[int, ...]]:
        """Units of each kind from each stage on."""
        usage, found = [0] * self.kinds, []
        for place in reversed(stages):
            usage[place.kind] += place.width
            found.append(tuple(usage))
        return found[::-1]

    def flights(self, stages: Allocation) -> list[int]:
        """k of each stage."""
        totals = [np.array(sum(usage)) for usage in self.usages(stages)]
        least = [int(self.in_flight(total, place.width)) for place, total in zip(stages, totals, strict=True)]
        return [place.held or k for place, k in zip(stages, least, strict=True)]

    def recompute(self, stages: Allocation) -> list[tuple[int, ...] | None]:
        """X of each stage; None where nothing fits."""
        return [
            self.recomputations[p.kind].choose(
                p.start, p.end, k, int(self.spare(p.start, p.end, p.kind, p.width, np.array(k)))
            )
            for p, k in zip(stages, self.flights(stages), strict=True)
        ]

    def feasible(self, stages: Allocation) -> bool:
        """Whether the stages are well formed, keep the wishes, and keep (2)."""
        edges = [0, *(place.end for place in stages)]
        modes = [place.mode for place in stages]
        well_formed = (
            len(stages) >= max(1, len(self.first) + len(self.last))
            and edges[-1] == self.layers
            and all(place.start == edge < place.end for place, edge in zip(stages, edges, strict=False))
            and all(self.cuts[edge - 1] for edge in edges[1:-1])
            and all(place.width in self.widths for place in stages)
            and tuple(modes[: len(self.first)]) == self.first
            and tuple(modes[len(modes) - len(self.last) :]) == self.last
            and all(used <= units for used, units in zip(self.usages(stages)[0], self.units, strict=True))
        )
        return well_formed and self._flights_allowed(stages) and None not in self.recompute(stages)

    def _flights_allowed(self, stages: Allocation) -> bool:
        totals = [np.array(sum(usage)) for usage in self.usages(stages)]
        widths, held = [place.width for place in stages], self.flights(stages)
        least, most = (
            [int(rule(total, width)) for total, width in zip(totals, widths, strict=True)]
            for rule in (self.in_flight, self.most_in_flight)
        )
        inside = all(a <= k <= b for a, k, b in zip(least, held, most, strict=True))
        return inside and falls(widths, [self.share(width) for width in widths], least, held)

    def leaves_node(self, before: int, behind: int, usage: tuple[int, ...]) -> int:
        """1 if a hop from kind ``before`` to kind ``behind``, with this usage behind it, leaves a node, otherwise 0."""
        return 1 if before != behind else int(usage[behind] % int(self.node[behind]) == 0)

    def hops(self, stages: Allocation) -> Iterator[tuple[int, int, int]]:
        """f, g and l behind each stage but the last."""
        for (place, behind), usage in zip(pairwise(stages), self.usages(stages)[1:], strict=True):
            hop = place.kind, behind.kind, self.leaves_node(place.kind, behind.kind, usage)
            cut = place.end - 1
            yield int(self.send[hop][cut]), int(self.send_back[hop][cut]), int(self.latency[hop])

    def finish(self, place: Place) -> int:
        """E of a stage: its gradient reduction and its update."""
        update = self.prefix["update"][place.kind, self.widths.index(place.width)]
        return int(update[place.end] - update[place.start]) + self.reduction(place)

    def reduction(self, place: Place) -> int:
        """R of a stage."""
        w = self.widths.index(place.width)
        reduce = self.prefix["reduce"][place.kind, w]
        bytes_ = int(reduce[place.end] - reduce[place.start])
        return bytes_ + (int(self.reduce_base[place.kind, w]) if bytes_ else 0)

    def evaluate(self, stages: Allocation) -> int:
        """The least T that (3) to (6), or the bottleneck, allow; the stages must be feasible."""
        return evaluate(self, stages)

    @cached_property
    def largest(self) -> int:
        """No allocation's objective, and no sum on the way to it, exceeds this."""
        work = int((2 * self.forward + self.backward).max(axis=0).sum(dtype=object))
        ends = int((self.update + self.reduce).max(axis=(0, 1)).sum(dtype=object)) + int(self.reduce_base.max())
        sends = 2 * int((self.send + self.send_back).max(axis=(0, 1, 2)).sum(dtype=object)) if self.layers > 1 else 0
        latency = 2 * self.layers * int(self.latency.max())
        return (2 * self.micro_batches + 2) * (work + sends) + latency + ends
