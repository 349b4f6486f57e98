r"""The chain partition problem: which contiguous layers does each stage hold?

Given n layers in a row and S stages, stage s on its own device, choose boundaries
0 = b_0 < b_1 < … < b_S = n; stage s holds the layers b_s … b_{s+1} − 1, and *cut* c = b_{s+1} − 1 lies on *link* s.

::

    layers   0   1   2 │ 3   4 │ 5   6   7         S = 3, b = (0, 3, 5, 8)
             ─ stage 0 ┼ stage 1 ┼ stage 2 ─
                   link 0     link 1
                   (cut 2)    (cut 4)

Sums over a stage's layers: F_s, B_s (forward, backward time of one micro-batch), U_s (update time), A_s (bytes saved for
backward), P_s (resident bytes), Z_s (largest workspace). At link s: f_s, g_s (time to send activations forward and
gradients back), l_s (latency), c_s (time per micro-batch that the link is busy in its busier direction), r_{s+1} (bytes that
stage s + 1 holds of what it received; r_0 = 0).

Memory, with k_s micro-batches in flight, for every stage:

(1)  P_s + k_s (A_s + r_s) + Z_s ≤ L_s

Time a device works on one micro-batch, where a device that cannot overlap also pays for what it sends:

(2)  w_s = F_s + B_s                        if transfers overlap
     w_s = F_s + B_s + f_s + g_{s−1}        otherwise

Objective ``bottleneck``: minimise T subject to

(3)  T ≥ w_s,   and, if transfers overlap,   T ≥ c_s.

Objective ``step``: minimise the proven lower bound on the time of a synchronous step of M micro-batches under *any* schedule:

(4)  T ≥ H_s + M w_s
     H_s = U_0 + Σ_{t<s} (F_t + B_t) + Σ_{t<s} 2 l_t + exposed sends, which are
           Σ_{t<s} (f_t + g_t)                       if tensors leave after they are complete (copy),
           Σ_{t<s} f_t + Σ_{t<s−1} g_t               if the sender waits (none: g_{s−1} is in w_s),
           0                                         if tensors leave while they are made (stream).

(5)  T ≥ R + (M − 1) c_s           copy,    R = U_0 + Σ_t (F_t + B_t) + Σ_t (2 l_t + f_t + g_t)
     T ≥ R' − F_s − B_{s+1} + M c_s    stream,  R' = U_0 + Σ_t (F_t + B_t) + Σ_t 2 l_t

(6)  T ≥ q + Σ_s (α_s F_s + β_s B_s + υ_s U_s) + Σ_s (φ_s f_s + γ_s g_s)   for each `PathCut`.

Why (4) holds: before its first forward the device of stage s waits for stages 0 … s − 1; it then works M w_s; its last backward
is the last of its work (but for the send that w_s contains), because a micro-batch's backward follows its forward; after
it the gradient still travels back through stages s − 1 … 0, and the last backward of stage 0 precedes its update. (5) is the same argument for a
link in one direction: M transfers, with the first one's way to the link before and the last one's way on after. (6): a path through the actions of one
given order is a chain of things that follow one another whatever the partition, so its length bounds that order's time.
docs/bounds.md has the proofs.

All times are integers of one unit, all sizes integers of another.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
Boundaries = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PathCut:
    """Coefficients of one inequality (6). ``forward``, ``backward``, ``update``: one per stage; sends: one per link."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    constant: int = 0


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
        If shapes disagree, a number is negative, or n < S.
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
    overlap: Literal["none", "copy", "stream"] = "copy"
    objective: Literal["step", "bottleneck"] = "step"
    paths: tuple[PathCut, ...] = ()

    def __post_init__(self) -> None:
        stages, layers = self.forward.shape
        shapes = {
            "backward": (stages, layers),
            "update": (stages, layers),
            "send": (stages - 1, layers - 1),
            "send_back": (stages - 1, layers - 1),
            "link": (stages - 1, layers - 1),
            "latency": (stages - 1,),
            "resident": (layers,),
            "saved": (layers,),
            "received": (layers - 1,),
            "workspace": (layers,),
            "in_flight": (stages,),
            "limit": (stages,),
        }
        for name, shape in {"forward": (stages, layers), **shapes}.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
            if array.size and int(array.min()) < 0:
                raise ValueError(f"{name} holds a negative number: {int(array.min())}")
        if not 1 <= stages <= layers:
            raise ValueError(f"{layers} layers do not fill {stages} stages")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, not {self.micro_batches}")
        if self.paths and self.objective != "step":
            raise ValueError("path cuts bound the step time; the bottleneck objective has none")

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
        """Prefix sums along the layers: ``prefix[name][..., b] - prefix[name][..., a]`` sums layers a … b − 1."""
        names = ("forward", "backward", "update", "resident", "saved")
        return {name: np.concatenate([np.zeros((*a.shape[:-1], 1), np.int64), np.cumsum(a, axis=-1)], axis=-1)
                for name in names for a in (getattr(self, name),)}

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
        spans = list(pairwise(boundaries))
        forward, backward, update = ([self._sum(name, s, a, b) for s, (a, b) in enumerate(spans)]
                                     for name in ("forward", "backward", "update"))
        cuts = [b - 1 for b in boundaries[1:-1]]
        send, back, link = ([int(array[s, c]) for s, c in enumerate(cuts)]
                            for array in (self.send, self.send_back, self.link))
        work = [f + b for f, b in zip(forward, backward, strict=True)]
        loads = list(work)
        if self.overlap == "none":
            loads = [w + f + g for w, f, g in zip(work, [*send, 0], [0, *back], strict=True)]
        if self.objective == "bottleneck":
            return max(loads + (link if self.overlap != "none" else []))

        many = self.micro_batches
        head, candidates = update[0], []
        for s, load in enumerate(loads):
            own = back[s - 1] if s and self.overlap == "none" else 0
            candidates.append(head - own + many * load)
            if s < self.stages - 1:
                head += work[s] + 2 * int(self.latency[s])
                head += send[s] + back[s] if self.overlap != "stream" else 0
        head += work[-1]  # now R of (5), or R' if tensors stream
        for s, busy in enumerate(link):
            if self.overlap == "copy":
                candidates.append(head + (many - 1) * busy)
            elif self.overlap == "stream":
                candidates.append(head - forward[s] - backward[s + 1] + many * busy)
        for path in self.paths:
            terms = zip(
                (path.forward, path.backward, path.update, path.send, path.send_back),
                (forward, backward, update, send, back),
                strict=True,
            )
            candidates.append(path.constant + sum(a * x for row, xs in terms for a, x in zip(row, xs, strict=True)))
        return max(candidates)

    def lower_bound(self) -> int:
        """A bound that needs no solver: total work over S stages, and the largest layer, at each layer's fastest device."""
        best = (self.forward + self.backward).min(axis=0)
        load = max(-(-int(best.sum()) // self.stages), int(best.max()))
        return load if self.objective == "bottleneck" else self.micro_batches * load

    def _sum(self, name: str, s: int, a: int, b: int) -> int:
        prefix = self.prefix[name][s]
        return int(prefix[b] - prefix[a])

    def _stage_memory(self, s: int, a: int, b: int) -> int:
        resident = int(self.prefix["resident"][b] - self.prefix["resident"][a])
        saved = int(self.prefix["saved"][b] - self.prefix["saved"][a])
        received = int(self.received[a - 1]) if a else 0
        return resident + int(self.in_flight[s]) * (saved + received) + int(self.workspace[a:b].max())
