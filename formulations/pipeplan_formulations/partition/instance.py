r"""The chain partition problem: contiguous layers for each stage of a pipeline, and the layers that it recomputes.

Given are n layers in a row and S stages, stage s on r_s equal devices (its *replicas*). Choose boundaries
0 = b_0 < b_1 < … < b_S = n: stage s holds the layers b_s … b_{s+1} − 1, and *cut* c = b_{s+1} − 1 lies on *link* s.

::

    layers   0   1   2 │ 3   4 │ 5   6   7         S = 3, b = (0, 3, 5, 8)
             ─ stage 0 ┼ stage 1 ┼ stage 2 ─
                   link 0     link 1
                   (cut 2)    (cut 4)

Sums over a stage's layers: F_s, B_s (forward, backward time of one micro-batch), U_s (update time), A_s (bytes saved
for backward), P_s (resident bytes), Z_s (largest workspace). At link s: f_s, g_s (least time to send activations
forward and gradients back), l_s (latency), c_s (time per micro-batch that the link is busy, in its busier direction if
it has two), r_{s+1} (bytes that stage s + 1 holds of what it received; r_0 = 0). Beyond the ends f_{S−1} = g_{−1} = 0.

Of M micro-batches the busiest replica of stage s processes M_s = ⌈M / r_s⌉, and the busiest link resource (in short:
resource) of link s carries m_s. Once per step a stage reduces its replicas' gradients and updates its weights:
E_s = R_s + U_s. R_s is the sum of ``reduce`` over its layers, plus ``reduce_base`` if one of them has ``reduce`` > 0,
without the part that its last backward ``hides`` (`common.exposed`). A `Tie` whose layers lie on different stages adds
to R_s, U_s and P_s.

A stage recomputes some of its layers, X_s: each holds its output instead of what it saved, and its forward is repeated
in B_s. X_s is not a variable but a function of the span: of all sets that fit it is one of least Σ forward, and
of those one of fewest layers.

*Memory limit*, k_s micro-batches in flight on a replica, Y_s the largest need of a second lane, for every stage:

    P_s + k_s (A_s − Σ_{X_s} (saved − output) + r_s) + max(Z_s, max_{X_s} rebuilt) + Y_s ≤ L_s

*Work of a micro-batch*: time a device is busy with it. A device that cannot overlap also pays for what it sends:

    w_s = F_s + B_s                        if transfers overlap
    w_s = F_s + B_s + f_s + g_{s−1}        otherwise

Objective ``bottleneck``: minimise T, the largest *load*, subject to

    T ≥ ⌈(M_s w_s + R_s) / N⌉,   and, if transfers overlap,   T ≥ ⌊m_s c_s / N⌋,   N the samples of a step.

Objective ``delayed``: of batches whose sums run beside the next one, T ≥ M_s w_s + U_s, T ≥ R_s with all gathers in it,
and the same for links (N = 1).

Objective ``step``: minimise the proven lower bound on the time of a synchronous step under *any* schedule. For the
warm-up, this means any schedule that runs at most k_s forwards of a stage before its first backward, one action at a
time. With

    p_t = F_t + l_t + f_t  (stream: without f_t)                  earliest start of stage t + 1 after that of stage t
    q_t = B_t + l_t + g_t  (stream: without; none: g_{t−1})       latest end of its backwards before that of stage t
    R = E_0 + Σ (p_t + q_t)                                       the round trip of one micro-batch

::

    way back         T ≥ Σ_{t<s} (p_t + q_t) + M_s w_s + E_0
    own ending       T ≥ Σ_{t<s} p_t         + M_s w_s + E_s
    services         T ≥ R + e   for every delay e
      copy             (M_s − 1) F_s,   (M_s − 1) B_s,   (m_s − 1) f_s,   (m_s − 1) g_s
      none             (M_s − 1) (F_s + f_s),   (M_s − 1) (B_s + g_{s−1})
      stream           (M_s − 1) F_s,   (M_s − 1) B_s,   m_s f_s − F_s,   m_s g_s − B_{s+1}
    path cuts        T ≥ q + Σ_s (α_s F_s + β_s B_s + υ_s U_s + ρ_s R_s) + Σ_s (φ_s f_s + γ_s g_s)   of each `PathCut`
    warm-up          T ≥ R + σ_s + max(M_s − k_s, 0) F_s + (M_s − 1) B_s  (none: F_s + f_s, B_s + g_{s−1}), if
                     ``alternating``; σ_s, of pairs of replicas that are slower than the fastest, if micro-batches are
                     run in order
    link resources   of each `LinkResource` that is busy for V in a step with activations or gradients of link s,
                     and with V' for link s + 1
                     T ≥ R + V − f_s,   T ≥ R + V − g_s                    (stream: F_s for f_s, B_{s+1} for g_s)
                     T ≥ R + V + V' − (f_s + l_s + F_{s+1} + f_{s+1})
                     T ≥ R + V + V' − (g_{s+1} + l_{s+1} + B_{s+1} + g_s)

Where a `Tie` that is summed joins the first and the last layer, and S > 1, no sum of the last stage begins before the
last backward of the first stage. Then max(E_0, E_{S−1}) takes the place of E_0 in a step.

Objective ``period`` is the same for the time from step to step in a long run. There stage s does not wait in each step
for the stages before it, so the own ending is T ≥ M_s w_s + E_s.

*Delayed weight gradients.* If backwards are split, ``backward`` is the time of the input gradient, and V_s is that of
the weight gradient, which may be delayed. It delays no other stage, and ends after the backward of its micro-batch. At
least one weight gradient follows the last backward. In the own ending all M_s of them count, which is stronger than the
way back for stage 0 too. In the warm-up those count that must end before the last forward, because k_s counts a
micro-batch until its weight gradient has ended. So there stand

- E_s + M_s V_s for E_s in the own ending, s ≥ 0, and E_0 + V_0 for E_0 in all others,
- F_s + V_s for the F_s of the warm-up.

Where a device has several stages, or micro-batches pass in slices, F, B and V differ by role (`common.pass_times`).
Those above are the device's own in w_s, the own ending and path cuts; *ahead* in p, q and V_0; of a *round trip* in R,
and where stream and link resources take them from R again; of *services* in the delays that services and warm-up add
to R. Each delay of a device also has own F + B − those of the round trip.

Reasons, with proofs in docs/bounds/chain.md:

- way back, own ending: a replica of stage s waits for stages 0 … s − 1, then works M_s w_s. After its last backward the
  gradient still travels back, and stage 0 ends its step, or stage s ends its own.
- services: the same argument for anything that processes micro-batches one by one in one direction.
- path cuts: a path through the actions of one given order is a chain of consecutive actions in every partition.
- warm-up: between the start of the first and the end of the last backward of a replica lie all its backwards, and all
  its forwards except k_s.
- link resources: services for a resource whose transfers differ.

All times are integers of one unit, all sizes integers of another.

Inequalities and functions, by module:

=====================  ============================================================================================
memory limit           `memory.Memory`, `ChainPartition.memory`; as rows `memory_rows.add_memory_rows` and
                       `link_positions.add_link_positions`; for each start `windows.windows`
X_s                    `memory.SpanRecomputation`, `ChainPartition.recompute`
work of a micro-batch  `terms.load`
loads                  `objective.stage_per_sample`, `objective.link_per_sample`; programme `minmax.solve_minmax`
way back, own ending   p_t, q_t: `terms.ahead`, `terms.behind`; R_s: `objective.reductions`, as rows
                       `mip.exposed.exposed_collectives`
max(E_0, E_{S−1})      `PartitionTables.ends_together`; in the programme `pareto._Stages.parts`
F, B, V by role        `PassTables.roles`, `PartitionTables.weight_of`, `objective.RoleSums`
services, warm-up      `terms.delays`, with delayed weight gradients
path cuts              `parts.PathCut.length`
link resources         `objective.delays_of_resources`
step, one partition    `objective.value`; many partitions `objective.values`
step, programme        `spans.spans` has the tables, `pareto.solve_step` the labels
as rows                `linear.linear_model`
=====================  ============================================================================================
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
    """A checked instance, with its memory, its objective and its bounds. `PartitionTables` has the fields.

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
        """The memory limit for arrays of spans."""
        return Memory(self)

    @cached_property
    def recomputing(self) -> SpanRecomputation:
        """Recomputation of each stage on each span of layers, and its cost."""
        return SpanRecomputation(self, self.room)

    def with_paths(self, paths: tuple[PathCut, ...]) -> "ChainPartition":
        """The instance with these path cuts, which shares all tables: this one if it has them."""
        if paths == self.paths:
            return self
        other = replace(self, paths=paths)
        known = ("prefix", "apart", "through", "bytes", "room", "recomputing")
        other.__dict__.update({name: getattr(self, name) for name in known})
        return other

    def recompute(self, s: int, a: int, b: int) -> tuple[int, ...] | None:
        """X of stage s on the layers a … b − 1, in order; None if nothing fits."""
        return self.recomputing.choose(s, a, b)

    def memory(self, boundaries: Boundaries) -> tuple[int, ...]:
        """Left side of the memory limit for each stage, in bytes; if no X fits, the least value over all X."""
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
        """True if the boundaries are well formed, fit, and respect allowed cuts and layers."""
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
        """True if well-formed boundaries fit the memory limit."""
        edges = np.array(boundaries)
        return bool((self.room.least(np.arange(self.stages), edges[:-1], edges[1:]) <= self.limit).all())

    def evaluate(self, boundaries: Boundaries, optimistic: bool = False) -> int:
        """The objective: the least T that satisfies the inequalities. A stage that does not fit recomputes nothing.

        ``optimistic`` takes a lower bound on the recomputation if its least value is unknown: a bound on the objective.
        """
        return value(self, boundaries, self.recomputing.of_partition(boundaries, optimistic))

    def feasible_value(self, boundaries: Boundaries) -> int | None:
        """The objective; None if the boundaries are not `feasible`."""
        return self.evaluate(boundaries) if self.feasible(boundaries) else None

    def lower_bound(self) -> int:
        """A closed-form lower bound on the objective; see `bounds.lower_bound`."""
        return lower_bound(self)

    @cached_property
    def largest(self) -> int:
        """An upper bound on the objective; see `bounds.largest`."""
        return largest(self)
