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
     or whatever is best from that of ``sno`` to that of ``so``, if counts fall from stage to stage   ``non_increasing``
     (see `non_increasing`),

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

from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.allocation.check import check
from pipeplan_formulations.allocation.non_increasing import falls
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.tables import AllocationTables, InFlightRule
from pipeplan_formulations.allocation.terms import behind, drained, loaded, own, services, step_on, two_phases
from pipeplan_formulations.common.layer_tables import Array

__all__ = ["Array", "ChainAllocation", "InFlightRule"]


@dataclass(frozen=True, kw_only=True)
class ChainAllocation(AllocationTables):
    """One instance, checked, with its memory and its objective. `AllocationTables` has the fields.

    Raises
    ------
    ValueError
        If shapes disagree, a number is negative, times add up beyond 64 bits, or a word is not one of those above.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)

    def recompute(self, stages: Allocation) -> list[tuple[int, ...] | None]:
        """X of each stage; None where nothing fits."""
        return [
            self.options[p.kind].choose(
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
        widths, held = [place.width for place in stages], self.flights(stages)
        modes = [(self.mode(place), sum(usage)) for place, usage in zip(stages, self.usages(stages), strict=True)]
        least = [mode.flying(total - mode.flow) for mode, total in modes]
        most = [mode.most_flying(total - mode.flow) for mode, total in modes]
        inside = all(a <= k <= b for a, k, b in zip(least, held, most, strict=True))
        return inside and falls(widths, [self.share(width) for width in widths], least, held)

    def evaluate(self, stages: Allocation) -> int:
        """The least T that (3) to (6), or the bottleneck, allow; the stages must be feasible."""
        hops = [*self.hops(stages), (0, 0, 0)]
        usages, flights = self.usages(stages), self.flights(stages)
        head = least = service = ahead = 0
        peaks: dict[int, int] = {}  # the largest backward of each width so far
        for s, (place, extra) in enumerate(zip(stages, self.recompute(stages), strict=True)):
            if extra is None:
                raise ValueError(f"stage {s}, {place}, does not fit whatever is recomputed")
            row = {name: self.prefix[name][place.kind] for name in ("forward", "backward")}
            forward = int(row["forward"][place.end] - row["forward"][place.start])
            backward = int(row["backward"][place.end] - row["backward"][place.start])
            backward += sum(int(self.forward[place.kind, layer]) for layer in extra)
            send, back, latency = hops[s]
            into = 0
            if s:
                node = self.leaves_node(place.kind, place.kind, usages[s])
                into = int(self.least_back[place.kind, node, place.start - 1])
            times = forward, backward, send, back, into
            if self.objective == "bottleneck":
                step = loaded(self.overlap, self.share(place.width), *times[:3], into, self.reduction(place))
                least = max(least, -(-step // self.divisor))
                if self.overlap != "none":
                    least = max(least, self.wire_shares[place.width] * max(send, back) // self.divisor)
                continue
            many = self.share(place.width)
            wait = (many - 1) * into if self.overlap == "none" else 0
            least = max(least, head + own(self.overlap, many, forward, backward, send) + wait)
            held = flights[s] if self.alternating else many
            service = max(service, *services(self.overlap, many, held, self.wire_shares[place.width], *times))
            if self.drains:
                peaks[place.width] = max(peaks.get(place.width, 0), backward)
                ahead = max(ahead, forward)
                for width, peak in peaks.items():
                    left = behind(self.last_batch, many, held, place.width) // width
                    drain = drained(many, held, forward + backward, left, peak)
                    service = max(service, two_phases(many, ahead, peak) if self.phases else drain)
            head += step_on(self.overlap, forward + backward, send, back, latency)
        if self.objective == "bottleneck":
            return least
        return max(least, head + service) + self.finish(stages[0])
