r"""The chain partition problem: which contiguous layers does each stage hold?

Given n layers in a row and S stages, stage s on its own device, choose boundaries
0 = b_0 < b_1 < … < b_S = n; stage s holds the layers b_s … b_{s+1} − 1, and *cut* c = b_{s+1} − 1 lies on *link* s.

::

    layers   0   1   2 │ 3   4 │ 5   6   7         S = 3, b = (0, 3, 5, 8)
             ─ stage 0 ┼ stage 1 ┼ stage 2 ─
                   link 0     link 1
                   (cut 2)    (cut 4)

Sums over a stage's layers: F_s, B_s (forward, backward time of one micro-batch), U_s (update time), A_s (bytes saved
for backward), P_s (resident bytes), Z_s (largest workspace). At link s: f_s, g_s (time to send activations forward and
gradients back), l_s (latency), c_s (time per micro-batch that the link is busy, in its busier direction if it has two),
r_{s+1} (bytes that stage s + 1 holds of what it received; r_0 = 0). Beyond the ends f_{S−1} = g_{−1} = 0.

Memory, with k_s micro-batches in flight, for every stage:

(1)  P_s + k_s (A_s + r_s) + Z_s ≤ L_s

Time a device works on one micro-batch, where a device that cannot overlap also pays for what it sends:

(2)  w_s = F_s + B_s                        if transfers overlap
     w_s = F_s + B_s + f_s + g_{s−1}        otherwise

Objective ``bottleneck``: minimise T subject to

(3)  T ≥ w_s,   and, if transfers overlap,   T ≥ c_s.

Objective ``step``: minimise the proven lower bound on the time of a synchronous step of M micro-batches under *any*
schedule:

(4)  T ≥ H_s + M w_s
     H_s = U_0 + Σ_{t<s} (F_t + B_t) + Σ_{t<s} 2 l_t + exposed sends, which are
           Σ_{t<s} (f_t + g_t)                       if tensors leave after they are complete (copy),
           Σ_{t<s} f_t + Σ_{t<s−1} g_t               if the sender waits (none: g_{s−1} is in w_s),
           0                                         if tensors leave while they are made (stream).

(5)  T ≥ R + e   for every e below,   R = H_{S−1} + w_{S−1}: one micro-batch alone, there and back
     copy      (M − 1) F_s,   (M − 1) B_s,   (M − 1) f_s,   (M − 1) g_s
     none      (M − 1) (F_s + f_s),   (M − 1) (B_s + g_{s−1})
     stream    (M − 1) F_s,   (M − 1) B_s,   M f_s − F_s,   M g_s − B_{s+1}

(6)  T ≥ q + Σ_s (α_s F_s + β_s B_s + υ_s U_s) + Σ_s (φ_s f_s + γ_s g_s)   for each `PathCut`.

Why (4) holds: before its first forward the device of stage s waits for stages 0 … s − 1; it then works M w_s; its last
backward is the last of its work (but for the send that w_s contains), because a micro-batch's backward follows its
forward; after it the gradient still travels back through stages s − 1 … 0, and the last backward of stage 0 precedes
its update. (5) is the same argument for anything that serves all M micro-batches one by one in one direction (the
forwards of a device, its backwards, a link one way): the first one's way to it, M services, the last one's way on.
(6): a path through the actions of one given order is a chain of things that follow one another whatever the partition,
so its length bounds that order's time. docs/bounds.md has the proofs; `terms` has (2), (4) and (5) as code.

All times are integers of one unit, all sizes integers of another.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition.terms import Number, Overlap, advance, delays, load

Array = NDArray[np.int64]
Boundaries = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PathCut:
    """Coefficients of one inequality (6). ``forward``, ``backward``, ``update``: one per stage; sends: one per link.

    Raises
    ------
    ValueError
        If a coefficient is negative: an action lies on a path or it does not.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    constant: int = 0

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "update", "send", "send_back"):
            if any(coefficient < 0 for coefficient in getattr(self, name)):
                raise ValueError(f"a path counts actions; {name} has a negative coefficient: {getattr(self, name)}")

    def length(self, forward: Number, backward: Number, update: Number, send: Number, send_back: Number) -> Number:
        """Right side of (6) for these times, each a sequence with one entry per stage or link."""
        total = self.constant
        rows = (self.forward, self.backward, self.update, self.send, self.send_back)
        for row, times in zip(rows, (forward, backward, update, send, send_back), strict=True):
            for coefficient, time in zip(row, times, strict=True):
                if coefficient:
                    total = total + coefficient * time
        return total


@dataclass(frozen=True)
class ChainPartition:
    """One instance. See the module's text for the meaning of each letter.

    Attributes
    ----------
    forward, backward, update : array of int, shape (S, n)
        F, B, U of each layer on each stage's device.
    send, send_back, link : array of int, shape (S − 1, n − 1)
        f, g, c of each cut on each link.
    latency : array of int, shape (S − 1,)
    resident, saved, workspace : array of int, shape (n,)
        Bytes that add to P_s, A_s and Z_s.
    received : array of int, shape (n − 1,)
        Bytes r of each cut.
    in_flight, limit : array of int, shape (S,)
        k_s and L_s.
    micro_batches : int
        M ≥ 1.
    overlap : 'none', 'copy' or 'stream'
    objective : 'step' or 'bottleneck'
    paths : tuple of PathCut
        Inequalities (6); only with objective 'step'.

    Raises
    ------
    ValueError
        If shapes disagree, a number is negative, n < S, or a word is not one of those above.
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

    def __post_init__(self) -> None:
        if self.forward.ndim != 2:
            raise ValueError(f"forward has shape {self.forward.shape}, expected (stages, layers)")
        stages, layers = self.forward.shape
        if not 1 <= stages <= layers:
            raise ValueError(f"{layers} layers do not fill {stages} stages")
        per_layer, per_cut = ("resident", "saved", "workspace"), ("send", "send_back", "link")
        shapes = {
            **dict.fromkeys(("forward", "backward", "update"), (stages, layers)),
            **dict.fromkeys(per_cut, (stages - 1, layers - 1)),
            **dict.fromkeys(per_layer, (layers,)),
            **{"received": (layers - 1,), "latency": (stages - 1,), "in_flight": (stages,), "limit": (stages,)},
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
            if array.size and int(array.min()) < 0:
                raise ValueError(f"{name} holds a negative number: {int(array.min())}")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, not {self.micro_batches}")
        if self.overlap not in ("none", "copy", "stream"):
            raise ValueError(f"overlap is {self.overlap!r}; choose none, copy or stream")
        if self.objective not in ("step", "bottleneck"):
            raise ValueError(f"objective is {self.objective!r}; choose step or bottleneck")
        if self.paths and self.objective != "step":
            raise ValueError("path cuts bound the step time; the bottleneck objective has none")
        for path in self.paths:
            sizes = [len(row) for row in (path.forward, path.backward, path.update, path.send, path.send_back)]
            if sizes != [stages, stages, stages, stages - 1, stages - 1]:
                raise ValueError(f"a path cut has rows of {sizes} coefficients; there are {stages} stages")

    @property
    def stages(self) -> int:
        """S."""
        return int(self.forward.shape[0])

    @property
    def layers(self) -> int:
        """n."""
        return int(self.forward.shape[1])

    @cached_property
    def prefix(self) -> dict[str, Array]:
        """Sums along the layers: ``prefix[name][..., b] - prefix[name][..., a]`` is the sum of layers a … b − 1."""
        names = ("forward", "backward", "update", "resident", "saved")
        return {name: np.insert(np.cumsum(getattr(self, name), axis=-1), 0, 0, axis=-1) for name in names}

    def with_paths(self, paths: tuple[PathCut, ...]) -> "ChainPartition":
        """The same instance with these inequalities (6)."""
        return replace(self, paths=paths)

    def memory(self, boundaries: Boundaries) -> tuple[int, ...]:
        """Left side of (1) for each stage, in bytes."""
        return tuple(self._stage_memory(s, a, b) for s, (a, b) in enumerate(pairwise(boundaries)))

    def feasible(self, boundaries: Boundaries) -> bool:
        """Whether the boundaries are well formed and keep (1)."""
        well_formed = (
            len(boundaries) == self.stages + 1
            and boundaries[0] == 0
            and boundaries[-1] == self.layers
            and all(a < b for a, b in pairwise(boundaries))
        )
        return well_formed and all(
            need <= int(limit) for need, limit in zip(self.memory(boundaries), self.limit, strict=True)
        )

    def evaluate(self, boundaries: Boundaries) -> int:
        """The least T that (2) to (6) allow."""
        forward, backward, update = (
            [self._sum(name, s, a, b) for s, (a, b) in enumerate(pairwise(boundaries))]
            for name in ("forward", "backward", "update")
        )
        cuts = [b - 1 for b in boundaries[1:-1]]
        send, back, link = (
            [int(array[s, c]) for s, c in enumerate(cuts)] for array in (self.send, self.send_back, self.link)
        )
        out, into = [*send, 0], [0, *back]
        stages = list(zip(forward, backward, out, into, strict=True))
        loads = [load(self.overlap, *times) for times in stages]
        if self.objective == "bottleneck":
            return int(max(loads + (link if self.overlap != "none" else [])))

        many, head = self.micro_batches, update[0]
        least = head + many * loads[0]
        for s, latency in enumerate(self.latency):
            head += advance(self.overlap, loads[s], int(latency), send[s], back[s])
            least = max(least, head + many * loads[s + 1])
        alone = head + loads[-1]
        least = max(least, alone + max(max(delays(self.overlap, many, *times)) for times in stages))
        return int(max([least, *(path.length(forward, backward, update, send, back) for path in self.paths)]))

    def lower_bound(self) -> int:
        """A bound that needs no solver, from each layer's fastest device.

        Some device works at least the average and at least the largest layer: the bottleneck, and M times it a step.
        For a step on S devices, (4) says w_s ≤ (T − Σ_{t<s} w_t) / M, so that all work together is at most
        T (1 − (1 − 1/M)^S); and (5) with s any stage gives T ≥ Σ w + (M − 1) max(F_s, B_s).
        """
        best = (self.forward + self.backward).min(axis=0)
        work, stages, many = int(best.sum()), self.stages, self.micro_batches
        share = max(-(-work // stages), int(best.max()))
        if self.objective == "bottleneck":
            return share
        full = int(many**stages)
        part = full - int((many - 1) ** stages)
        one_way = [table.min(axis=0) for table in (self.forward, self.backward)]
        lane = max(max(-(-int(times.sum()) // stages), int(times.max())) for times in one_way)
        return max(many * share, -(-work * full // part), work + (many - 1) * lane)

    @cached_property
    def largest(self) -> int:
        """No partition's objective exceeds this: every layer on its slowest device, every send at its worst, M times.

        It bounds every intermediate sum of the formulations too, so it tells how far integers must reach.
        """
        tables = (self.forward, self.backward, self.update)
        work = sum(int(table.max(axis=0).sum(dtype=object)) for table in tables)
        sends = sum(
            int(table.max(axis=1).sum(dtype=object)) for table in (self.send, self.send_back, self.link) if table.size
        )
        step = (self.micro_batches + 1) * (work + sends) + 2 * int(self.latency.sum(dtype=object))
        rows = [
            abs(path.constant)
            + max(0, *path.forward, *path.backward, *path.update, *path.send, *path.send_back) * (work + sends)
            for path in self.paths
        ]
        return max([step, *rows])

    def _sum(self, name: str, s: int, a: int, b: int) -> int:
        prefix = self.prefix[name][s]
        return int(prefix[b] - prefix[a])

    def _stage_memory(self, s: int, a: int, b: int) -> int:
        resident = int(self.prefix["resident"][b] - self.prefix["resident"][a])
        saved = int(self.prefix["saved"][b] - self.prefix["saved"][a])
        received = int(self.received[a - 1]) if a else 0
        return resident + int(self.in_flight[s]) * (saved + received) + int(self.workspace[a:b].max())
