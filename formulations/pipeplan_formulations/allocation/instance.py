r"""The chain allocation problem: number of stages, their layers, and the number and kind of devices of each.

Given are n layers in a row and C kinds of devices. Kind c has units_c *units* of ``unit`` devices each. A stage is a
run of layers a … b − 1 on w units of one kind, its *width*. It has r = w · unit replicas, which take micro-batches in
turn, at most M_w = ⌈M / r⌉ each. Units may stay unused.

Kinds may share a *pool* of units, of which a stage of kind c takes w · takes_c. So one device may be a replica by
itself, or a member of a team, whose size is another kind. Not all kinds need be able to have all widths. The *flow* R
from a stage on is the sum of the widths.

::

    layers   0   1   2 │ 3   4   5   6 │ 7   8        three stages: (0, 3, kind 0, width 1)
             ─ stage 0 ┼─── stage 1 ───┼ stage 2                    (3, 7, kind 1, width 2)
    units    0:1         1:2             0:1                        (7, 9, kind 0, width 1)
    usage    (2, 2)      (1, 2)          (1, 0)       units of each kind from a stage on, counted from the end

The usage u from a stage on, with the flow R, determines how many micro-batches a replica holds. (Without teams R is the
sum of u over the kinds.) The *in-flight rule*:

     k = min(M_w, ⌈R / w⌉)   ``sno``,   ⌈(2 R − w) / w⌉   ``so``,   ⌈2 R / w⌉   ``fbp``,   M_w   ``full``,
     (of S ``slices`` S − 1 more, and at most S M_w,)
     or the best count from that of ``sno`` to ⌈(3 R − 2 w) / w⌉, with counts that are ``non_increasing`` from stage
     to stage (see `non_increasing`).

It also determines whether a hop between two stages of kind c leaves a node: it does if the usage of kind c behind it is
a multiple of node_c. Otherwise some pair of replicas shares a node, and the hop counts as one inside the node.

*Memory limit*, with X the recomputed layers, the cheapest set that fits (`Recomputation`):

     resident + k (Σ_{l∉X} saved + Σ_{l∈X} output + received)
              + max(max workspace, max_{l∈X} rebuilt) ≤ limit

For a stage and one micro-batch, F is the forward time and B the backward time, the repeated forwards of X included. At
the hop behind the stage, f and g are the times to send activations and gradients, and l is the latency. ĝ is the least
time to send gradients over the hop before the stage. E_0 is the first stage's update and gradient reduction, or what
its last backward does not hide of it (`common.exposed`). The objective ``step`` is the least T with all of

*Way back*:

     T ≥ E_0 + H_s + M_w (F + B)                            if devices compute while they send; of slices also
     T ≥ E_0 + H_s + F + B + (M_w − 1) max(F, B) + Σ late   late F + B of the layers behind the stage (way through)
     T ≥ E_0 + H_s + M_w (F + B + f) + (M_w − 1) ĝ          if devices wait while they send (none)
     H_{s+1} = H_s + F + B + 2 l + f + g                    without f + g if tensors are sent as they are made (stream)

*One-stage delays*, services and warm-up:

     T ≥ E_0 + A + e,   A = H_{S−1} + F_{S−1} + B_{S−1}: the round trip of one micro-batch; for each delay e of
     (M_w − 1) F,   (M_w − 1) B                             with F + f and B + ĝ instead if devices wait
     max(M_w − k, 0) F + (M_w − 1) B                        likewise, if at most k forwards precede a first backward
     (L_w − 1) f,   (L_w − 1) g                             copy
     L_w f − F,   L_w ĝ − B                                 stream

*Alternation*, of schedules that alternate forwards and backwards:

     T ≥ E_0 + A + (M_s − k_s) (F_s + B_s) + ⌊(m − (M_s − k_s) w_s) / w_t⌋ B_t      for t ≤ s, M_s short for M_w of its
     width, m = ⌊(M − 1) / unit⌋

*Trips one after another*, of 1F1B (``two_trips``), if M_s > k_s, with the round trip C_s behind the stage, A − H_s −
F_s − B_s, and D_st the way from s to a stage t ≥ s and back, F and B of both included:

     T ≥ E_0 + A + F_s + B_s + C_s + c D_st + ⌊rest / w_s⌋ (F_s + B_s)
     c cycles of k_s w_s − (k_t − 1) w_t fit into m − k_s w_s and leave the rest; t = s in large problems (`cycles`)

*Two phases*, of schedules that run all forwards first (``phases``), with a single width:

     T ≥ E_0 + A + (M_w − 1) (F_s + B_t)

Each stage's gradients are reduced, and its weights updated, after its own last backward. With E_s as E_0 of stage s,
*own ending*, with W_s the time for which a stage s > 0 waits for gathers (`common.exposed`):

     T ≥ max(G_s, W_s) + M_w (F + B) + E_s                  with F + B + f + ĝ instead if devices wait
     G_{s+1} = G_s + F + l + f                              without f if tensors are sent as they are made (stream)

Where the first and the last stage sum gradients of the same weights, all their sums begin when both have ended their
last backwards. R of the last stage then has the time J of that sum (``joint``), and T of a step is bounded by the last
stage's E too: the larger of E_0 and E_{S−1} takes the place of E_0 above.

The objective ``period`` is the time from step to step in a long run. There G_s is 0: a stage waits for those before
it, but not anew in each step.

Where a device has several stages, or micro-batches pass in slices, F and B differ by role (`common.pass_times`). Those
above are the device's own in M_w (F + B); *ahead* in H and G; of a *round trip* in A, and where stream takes them from
it again; of *services* in the other one-stage delays. Each e of a device also has own F + B − those of the round trip.
Alternation, two trips and two phases are left out. A micro-batch in S slices crosses a link S times.

A link between two replicas carries at least L_w = min_{w'} ⌈M / lcm(w, w')⌉ micro-batches, widths counted in devices.
The objective ``bottleneck`` is the time per sample of an endless pipeline, with N samples per step. It is the largest
⌈(M_w (F + B) + R) / N⌉ (F + B + f + ĝ if devices wait), R the stage's gradient reduction, and, if devices do not wait,
⌊L_w max(f, g) / N⌋. The objective ``delayed`` is that of a batch (N = 1) with U in place of R there, and T ≥ R, gathers
included: sums of gradients run beside the next batch.

docs/bounds/allocation.md proves that these are bounds for every plan of the space. All times are integers of one unit,
all sizes integers of another.

Inequalities and functions, by module:

=========================  ==========================================================================================
in-flight rule             `tables.AllocationTables.modes`; choices: `non_increasing.is_non_increasing`
memory limit               `tables.AllocationTables.spare`, `ChainAllocation.recompute`; many spans: `Spans.extra`
way back: term and head    `terms.own`, `terms.head_step`
one-stage delays           `terms.delays`
alternation                `terms.drain_delay`, `terms.micro_batches_behind`; bounded: `LargestBackward.allows`
trips one after another    `terms.between_trips`; bounded: `Trips`, `Transitions.pace`; two trips: `Reach`
two phases                 `terms.two_phase_delay`; bounded: `LargestBackward.allows_phases`
own ending                 `terms.ahead_step`, `terms.stage_load`; within a target: `Pass.in_time`
E_{S−1} in place of E_0    `tables.AllocationTables.ends_together`; least, within a target: `Pass.last_finish`
reductions R               `tables.AllocationTables.reductions`
bottleneck                 `terms.stage_load`, `tables.AllocationTables.link_shares` (L_w)
ĝ                          `tables.AllocationTables.least_back`
all of one allocation      `ChainAllocation.evaluate`
least way back, A: suffix  `suffix_bounds.suffix.run`; least E_0 + H for prefixes: `best_first.prefix_tables`
=========================  ==========================================================================================
"""

from dataclasses import dataclass

from pipeplan_formulations.allocation.check import check
from pipeplan_formulations.allocation.non_increasing import is_non_increasing
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.tables import AllocationTables
from pipeplan_formulations.allocation.terms import (
    Turn,
    ahead_step,
    between_trips,
    delays,
    drain_delay,
    head_step,
    micro_batches_behind,
    own,
    stage_load,
    two_phase_delay,
)
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.span_options import IMPOSSIBLE


@dataclass(frozen=True, kw_only=True)
class ChainAllocation(AllocationTables):
    """A checked instance, with its memory and its objective. `AllocationTables` has the fields.

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
                p.start, p.end, k, int(self.spare(p.kind, self.widths.index(p.width), p.start, p.end, k))
            )
            for p, k in zip(stages, self.in_flight_counts(stages), strict=True)
        ]

    def feasible(self, stages: Allocation) -> bool:
        """True if the stages are well formed, have the forced modes and allowed cuts, and fit."""
        edges = [0, *(place.end for place in stages)]
        modes = [place.mode for place in stages]
        well_formed = (
            len(stages) >= max(1, len(self.first) + len(self.last))
            and edges[-1] == self.layers
            and all(place.start == edge < place.end for place, edge in zip(stages, edges, strict=False))
            and all(self.cuts[edge - 1] for edge in edges[1:-1])
            and all(place.width in self.widths and self._able(place) for place in stages)
            and tuple(modes[: len(self.first)]) == self.first
            and tuple(modes[len(modes) - len(self.last) :]) == self.last
            and all(used <= units for used, units in zip(self.usages(stages)[0], self.units, strict=True))
        )
        return well_formed and self._counts_allowed(stages) and None not in self.recompute(stages)

    def _able(self, place: Place) -> bool:
        return bool(self.able[place.kind, self.widths.index(place.width)])

    def _counts_allowed(self, stages: Allocation) -> bool:
        widths, held = [place.width for place in stages], self.in_flight_counts(stages)
        modes = [(self.mode(place), flow) for place, flow in zip(stages, self.flows(stages), strict=True)]
        least = [mode.flying(flow - mode.flow) for mode, flow in modes]
        most = [mode.most_flying(flow - mode.flow) for mode, flow in modes]
        inside = all(a <= k <= b for a, k, b in zip(least, held, most, strict=True))
        return inside and is_non_increasing(widths, [self.share(width) for width in widths], least, held)

    def evaluate(self, stages: Allocation) -> int:
        """The objective: the least T by all inequalities, or the bottleneck. The stages must be feasible."""
        hops = [*self.hops(stages), (0, 0, 0)]
        usages, counts = self.usages(stages), self.in_flight_counts(stages)
        head = trip = least = delay = longest = ahead = ended = 0
        twice = -IMPOSSIBLE  # of trips one after another, without the first and the last
        turns = list[Turn]()  # of the stages so far
        backwards: dict[int, int] = {}  # the largest backward of each width so far
        for s, (place, extra) in enumerate(zip(stages, self.recompute(stages), strict=True)):
            if extra is None:
                raise ValueError(f"stage {s}, {place}, does not fit whatever is recomputed")
            # F and B of the stage, recomputed forwards included.
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
            alone = Times(forward, backward)
            way, passed, service = self.roles(alone, place.kind, place.start, place.end)
            if self.endless:
                once, sums = self.once(place.kind, self.widths.index(place.width), place.start, place.end)
                step = stage_load(self.overlap, self.share(place.width), *times[:3], into, int(once))
                least = max(least, -(-step // self.divisor), int(sums))
                if self.overlap != "none":
                    least = max(least, self.link_shares[place.width] * max(send, back) // self.divisor)
                continue
            # Way back: the largest term so far, without E_0.
            many = self.share(place.width)
            wait = (many - 1) * into if self.overlap == "none" else 0
            alone_takes = own(self.overlap, many, forward, backward, send) + wait
            busy = int(self.in_all(alone_takes, alone, many, place.end))
            least = max(least, head + busy)
            # One-stage delays, then alternation or two phases: the largest delay e so far.
            held = counts[s] if self.alternating else many
            longer, carried = self.longer(alone, passed), self.link_shares[place.width]
            each = delays(self.overlap, many, held, carried, service, passed, longer, send, back, into)
            delay = max(delay, *each)
            if self.trips_twice:
                turn = trip, service.work, place.width, held
                turns = [*(turns if self.cycles else ()), *[turn] * (held < many)]
                twice = max([twice, *(between_trips(self.last_batch, each, turn) - each[0] for each in turns)])
            if self.drains:
                backwards[place.width] = max(backwards.get(place.width, 0), backward)
                longest = max(longest, forward)
                for width, largest in backwards.items():
                    left = micro_batches_behind(self.last_batch, many, held, place.width) // width
                    drain = drain_delay(many, held, forward + backward, left, largest)
                    delay = max(delay, two_phase_delay(many, longest, largest) if self.phases else drain)
            head += head_step(self.overlap, way.work, send, back, latency)
            trip += head_step(self.overlap, passed.work, send, back, latency)
            # Own ending: the latest end of a stage's update so far.
            finish = self.finish(place)
            busy = max(busy + finish, stage_load(self.overlap, many, forward, backward, send, into, finish))
            wait = int(self.waits(place.kind, self.widths.index(place.width), place.start, place.end))
            ended = max(ended, max(ahead, wait) + busy)
            if self.objective == "step":
                ahead += ahead_step(self.overlap, way.forward, send, latency)
        if self.endless:
            return least
        delay = max(delay, trip + twice)
        finish = max(self.finish(place) for place in (stages[0], *stages[-1:] * self.ends_together))
        return max(ended, max(least, trip + delay) + finish)
