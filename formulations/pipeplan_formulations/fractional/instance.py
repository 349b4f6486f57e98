r"""Problem definition of the fractional chain partition: a layer on a boundary may be divided between neighbours.

There are n layers and S stages, both in sequence. Boundaries are *positions*, real numbers 0 = p_0 ≤ p_1 ≤ … ≤ p_S = n.
Stage s holds the layers between p_s and p_{s+1}. Position c + θ divides layer c; its share θ belongs to the left stage.

::

    layers     0     1     2     3     4          S = 3,  p = (0, 1.4, 3, 5)
             ├─────┼──╫──┼─────╫─────┼─────┤
              stage 0 │ stage 1 │ stage 2         stage 1 holds 0.6 of layer 1, and layer 2
                      p_1       p_2

The *output channels* are divided: a share x of a layer takes x of its time, parameters, stored activations and
workspace. Each part reads the layer's whole input, and the next layer reads the whole output. Two things cross position
c + θ, 0 ≤ θ < 1, in the forward pass: the tensors that cross in front of layer c, passed on whole, and the share θ of
the layer's output. In the backward pass the gradient of that share returns, with the right part's contribution to the
gradients of the tensors passed on, which the left stage adds to its own. Both directions carry the same bytes. At an
integer position (θ = 0) this is an ordinary layer boundary.

Letters as in `pipeplan_formulations.partition.instance`: F_s, B_s, U_s, P_s, A_s are sums over the stage's shares, Z_s
is the largest workspace of a share, and l_s the latency. Link s carries f_s = g_s = through_c + θ own_c nanoseconds of
tensors, and stage s + 1 stores r_{s+1} = bytes_through_c + θ bytes_own_c of them.

*On-chip weights.* A stage whose parameters and gradients fit into the device's on-chip memory, K_s ≤ C_s, reads them
there and takes F_s, B_s; any other stage streams them from memory for each micro-batch and takes F'_s ≥ F_s,
B'_s ≥ B_s.

::

    memory limit   P_s + k_s (A_s + r_s) + Z_s ≤ L_s
    bottleneck     T ≥ F_s + B_s,  T ≥ f_s                                        ``bottleneck``; all others ``step``
    way back       T ≥ U_0 + Σ_{t<s} (F_t + B_t + 2 l_t) + M (F_s + B_s)
    services       T ≥ R + e,  R = U_0 + Σ_s (F_s + B_s) + Σ_s 2 l_s,  e one of
                   (M − 1) F_s,   (M − 1) B_s,   M f_s − F_s,   M g_s − B_{s+1}
    path cuts      T ≥ the length of each `PathCut`
    warm-up        T ≥ R + max(M − h_s, 0) F_s + (M − 1) B_s     if the order of actions is restricted, see below

With *two lanes* (forwards concurrent with backwards on one device) F and B are the times on each lane. Then the
bottleneck is T ≥ max(F_s, B_s). The way back adds times that now overlap, so it is dropped; services are stronger.

The warm-up holds with h_s = k_s if stage s runs at most k_s forwards before its first backward and alternates from then
on. The first backward waits for a micro-batch's round trip to the last stage and back; M backwards and the other
forwards come after it. It holds with h_s = 1 if all forwards precede all backwards (GPipe). The last micro-batch's
forward leaves stage s after M forwards; only then does the last stage begin with backwards, and M of them run on stage
s.

These are bounds for devices that send a tensor while it is computed (``stream``), the only ones that divide
layers here. Their proofs use the time of a stage, not its contents. A stage may be empty (p_s = p_{s+1}); it then
passes on the tensors that it receives.

Times are integers of one unit and shares are real; a value is rounded up to the next whole unit (`whole`).

===============  ===========================================================================
inequality       functions
===============  ===========================================================================
memory limit     `FractionalPartition.memory`, `tables.Tables._memory`, `linear._memory`
on-chip weights  `FractionalPartition.streamed`, `tables.Tables.ways`, `linear._lane`
bottleneck       `FractionalPartition.evaluate`, `tables.Tables.rows`, `linear._objective`
the step's       `FractionalPartition.evaluate`, `tables.Tables._step`, `linear._objective`
path cuts        `FractionalPartition.evaluate`, `linear._objective` (not in the exact method)
===============  ===========================================================================
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition import PathCut

Array = NDArray[np.int64]
Positions = tuple[float, ...]

ACCURACY = 1e-9
"""Relative accuracy of values: sums of products of doubles, with room to spare."""
TOLERANCE = ACCURACY / 16
"""Relative tolerance of one inequality in the exact method; several of them stay within `ACCURACY`."""


def whole(value: float) -> int:
    """Round up to a whole unit; a value within `ACCURACY` of an integer is rounded to that integer."""
    near = round(value)
    return near if abs(value - near) <= ACCURACY * value else math.ceil(value)


def split(position: float) -> tuple[int, float]:
    """Return (c, θ) of position c + θ."""
    layer = math.floor(position)
    return layer, position - layer


@dataclass(frozen=True)
class FractionalPartition:
    """One instance of the problem; the module's docstring defines each letter.

    Attributes
    ----------
    forward, backward, update : array of int, shape (S, n)
        F, B, U of each whole layer on each stage's device, with weights on chip.
    forward_streamed, backward_streamed : array of int, shape (S, n)
        F', B' of each whole layer, with weights streamed; nowhere less than ``forward`` and ``backward``.
    through, own : array of int, shape (S − 1, n)
        Time on each link of the tensors that cross in front of each layer (0 for layer 0), and of each layer's output.
    latency : array of int, shape (S − 1,)
    resident, saved, workspace, weights : array of int, shape (n,)
        Bytes that add to P_s, A_s, Z_s and K_s.
    bytes_through, bytes_own : array of int, shape (n,)
    in_flight, limit, on_chip : array of int, shape (S,)
        k_s, L_s and C_s (`UNLIMITED` if weights are never streamed).
    micro_batches : int
        M ≥ 1.
    objective : 'step' or 'bottleneck'
    two_lanes : bool
    ahead : array of int, shape (S,), or None
        h_s; None where the warm-up bound need not hold.
    paths : tuple of PathCut
        Path cuts; only with objective 'step' and without reductions.

    Raises
    ------
    ValueError
        If shapes disagree, a number is negative, streaming takes less time than reading on chip, more crosses in front
        of a layer than the layers before it can send, or the objective is unknown.
    """

    forward: Array
    backward: Array
    forward_streamed: Array
    backward_streamed: Array
    update: Array
    through: Array
    own: Array
    latency: Array
    resident: Array
    saved: Array
    workspace: Array
    weights: Array
    bytes_through: Array
    bytes_own: Array
    in_flight: Array
    limit: Array
    on_chip: Array
    micro_batches: int
    objective: Literal["step", "bottleneck"] = "step"
    two_lanes: bool = False
    ahead: Array | None = None
    paths: tuple[PathCut, ...] = ()

    def __post_init__(self) -> None:
        if self.forward.ndim != 2 or not all(self.forward.shape):
            raise ValueError(f"forward has shape {self.forward.shape}, expected (stages, layers), at least one of each")
        stages, layers = self.forward.shape
        times = ("forward", "backward", "forward_streamed", "backward_streamed", "update")
        sizes = ("resident", "saved", "workspace", "weights", "bytes_through", "bytes_own")
        shapes = {
            **dict.fromkeys(times, (stages, layers)),
            **dict.fromkeys(("through", "own"), (stages - 1, layers)),
            **dict.fromkeys(sizes, (layers,)),
            **dict.fromkeys(("in_flight", "limit", "on_chip"), (stages,)),
            "latency": (stages - 1,),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
            if array.size and int(array.min()) < 0:
                raise ValueError(f"{name} holds a negative number: {int(array.min())}")
        for name in ("forward", "backward"):
            if (getattr(self, f"{name}_streamed") < getattr(self, name)).any():
                raise ValueError(f"{name} takes longer with weights on chip than with streamed ones")
        if self.through[:, 0].any() or self.bytes_through[0]:
            raise ValueError("nothing crosses in front of layer 0; through[:, 0] and bytes_through[0] must be 0")
        for through, own in ((self.through, self.own), (self.bytes_through, self.bytes_own)):
            if (through[..., 1:] > (through + own)[..., :-1]).any():
                raise ValueError("more crosses in front of a layer than in front of the one before and its output")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, not {self.micro_batches}")
        if self.ahead is not None and (self.two_lanes or self.ahead.shape != (stages,) or int(self.ahead.min()) < 1):
            raise ValueError(f"ahead is {self.ahead}; give a number above 0 for each of {stages} stages, on one lane")
        for path in self.paths:
            if self.objective != "step" or path.sizes != (stages,) * 4 + (stages - 1,) * 2 or any(path.reduce):
                raise ValueError(f"{path} is no path cut of a step on {stages} stages without reductions")
        if self.objective not in ("step", "bottleneck"):
            raise ValueError(f"objective is {self.objective!r}; choose step or bottleneck")

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return int(self.forward.shape[0])

    @property
    def layers(self) -> int:
        """Number of layers n."""
        return int(self.forward.shape[1])

    @cached_property
    def streams(self) -> tuple[bool, ...]:
        """For each stage, True if on-chip and streamed weights can differ in time and not all weights fit on chip."""
        more = (self.forward_streamed > self.forward) | (self.backward_streamed > self.backward)
        full = int(self.weights.sum(dtype=object))
        return tuple(bool(row.any()) and full > int(chip) for row, chip in zip(more, self.on_chip, strict=True))

    def well_formed(self, positions: Positions) -> bool:
        """True for S + 1 positions in ascending order from 0 to n."""
        return (
            len(positions) == self.stages + 1
            and positions[0] == 0
            and positions[-1] == self.layers
            and all(a <= b for a, b in pairwise(positions))
        )

    def shares(self, positions: Positions) -> NDArray[np.float64]:
        """Share of each layer on each stage, shape (S, n); every column adds up to 1."""
        edges = np.array(positions)[:, None] - np.arange(self.layers)
        left = np.clip(edges, 0.0, 1.0)  # the part of each layer in front of each position
        return np.asarray(left[1:] - left[:-1])

    def streamed(self, positions: Positions) -> tuple[bool, ...]:
        """For each stage, True if its weights do not fit on chip."""
        used = self.shares(positions) @ self.weights
        return tuple(not _within(a, int(b)) for a, b in zip(used.tolist(), self.on_chip, strict=True))

    def memory(self, positions: Positions) -> tuple[float, ...]:
        """Left side of the memory limit for each stage, in bytes."""
        shares = self.shares(positions)
        received = [0.0, *self._at(positions, self.bytes_through, self.bytes_own)]
        held = shares @ self.saved + received
        return tuple((shares @ self.resident + self.in_flight * held + (shares * self.workspace).max(axis=1)).tolist())

    def feasible(self, positions: Positions) -> bool:
        """True if the positions are well formed and fit."""
        return self.well_formed(positions) and all(
            _within(need, int(limit)) for need, limit in zip(self.memory(positions), self.limit, strict=True)
        )

    def evaluate(self, positions: Positions) -> float:
        """Least T that satisfies the inequalities of the objective."""
        # F_s and B_s of each stage, with on-chip or streamed weights; the time f_s on each link.
        shares, streamed = self.shares(positions), self.streamed(positions)
        forward, backward = (
            [
                float(part @ (slow if far else fast))
                for part, fast, slow, far in zip(shares, a, b, streamed, strict=True)
            ]
            for a, b in ((self.forward, self.forward_streamed), (self.backward, self.backward_streamed))
        )
        lanes = list(zip(forward, backward, strict=True))
        sends = [self._at(positions, self.through[s], self.own[s])[s] for s in range(self.stages - 1)]
        if self.objective == "bottleneck":
            return max([*map(max if self.two_lanes else sum, lanes), *sends])
        # Right sides of the way back. ``head`` grows from U_0 to R; without M it is the sum over the stages before s.
        many, head, sides = self.micro_batches, float(shares[0] @ self.update[0]), []
        for pair, latency in zip(lanes, [*self.latency.tolist(), 0], strict=True):
            sides += [] if self.two_lanes else [head + many * sum(pair)]
            head += sum(pair) + 2 * latency
        # Right sides of services, warm-up and path cuts; ``alone`` is R, the time of a step of one micro-batch.
        alone = head
        sides += [alone + (many - 1) * max(pair) for pair in lanes]
        if self.ahead is not None:
            rest = np.maximum(many - self.ahead, 0).tolist()
            sides += [alone + left * f + (many - 1) * b for left, (f, b) in zip(rest, lanes, strict=True)]
        sides += [alone + many * f - min(forward[s], backward[s + 1]) for s, f in enumerate(sends)]
        update = (shares * self.update).sum(axis=1).tolist()
        sides += [float(path.length(forward, backward, update, [0] * self.stages, sends, sends)) for path in self.paths]
        return max(sides)

    def lower_bound(self) -> int:
        """Lower bound without a solver, from each layer's fastest device with weights on chip.

        Let W be all work on those devices, and stage s at least ρ_s times as slow: a stage of load w_s does at most
        w_s / ρ_s of W. So W ≤ Σ_s w_s / ρ_s. For the bottleneck w_s ≤ T. For a step the way back gives
        w_s ≤ (T − Σ_{t<s} w_t) / M, so each stage multiplies the rest of W by at least 1 − 1 / (M ρ_s).
        Services give T ≥ W + (M − 1) max_s F_s, and the same with B.
        """
        lanes = [_paces(table) for table in (self.forward, self.backward)]
        lane = max(work / sum(1 / slow for slow in paces) if work else 0.0 for work, paces in lanes)
        work, paces = _paces(self.forward + self.backward)
        if self.objective == "bottleneck":
            return _rounded(lane if self.two_lanes else work / sum(1 / slow for slow in paces))
        many = self.micro_batches
        step = work + (many - 1) * lane
        if not self.two_lanes:
            step = max(step, work / (1 - math.prod(1 - 1 / (many * slow) for slow in paces)))
        return _rounded(step)

    @cached_property
    def largest(self) -> int:
        """Upper bound on the objective of any partition."""
        tables = (self.forward_streamed, self.backward_streamed, self.update)
        work = sum(int(table.max(axis=0).sum(dtype=object)) for table in tables)
        sends = sum(int(row.max()) for table in (self.through, self.own) for row in table)
        most = max([self.micro_batches, *(path.largest for path in self.paths)])
        constant = max((path.constant for path in self.paths), default=0)
        return (most + 1) * (work + 2 * sends) + 2 * int(self.latency.sum(dtype=object)) + max(constant, 0)

    def _at(self, positions: Positions, through: Array, own: Array) -> list[float]:
        """Values through_c + θ own_c at each inner position; 0 behind the last layer."""
        places = [split(position) for position in positions[1:-1]]
        return [float(through[c] + share * own[c]) if c < self.layers else 0.0 for c, share in places]


def _paces(times: Array) -> tuple[int, list[float]]:
    """Total work on each layer's fastest device, and for each stage the least ratio of its times to the fastest."""
    best = times.min(axis=0)
    busy = best > 0
    paces = [float((row[busy] / best[busy]).min()) if busy.any() else 1.0 for row in times]
    return int(best.sum(dtype=object)), paces


def _rounded(bound: float) -> int:
    """Round a floating-point bound up to a whole unit, less its relative error."""
    return max(0, math.ceil(bound * (1 - ACCURACY)))


def _within(need: float, limit: int) -> bool:
    return need <= limit * (1 + ACCURACY)
