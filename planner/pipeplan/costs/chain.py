"""`Chain`: cost tables of a model's layers on a sequence of stages, for one micro-batch size.

Partitioners and formulations read it. Row s of each table belongs to stage s, which runs on one device or on several
replicas of one kind; times and bytes are those of one replica. Column i belongs to layer i; cut c lies between layers c
and c + 1.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from pipeplan.core.cluster import Device, Overlap
from pipeplan.core.pipeline import Hop
from pipeplan.core.splits import Splitting
from pipeplan.costs.sharded import Passes
from pipeplan_formulations.common.layer_tables import LEFT_OUT, Array, LayerTables
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.partition.parts import Tie, has_copy, is_home

__all__ = ["UNLIMITED", "Array", "Boundaries", "Chain", "SharedWeights"]

EITHER = ("least_first_part", "least_second_part")
FIRST = ("first_forward", "first_backward", "first_input_gradient", "first_weight_gradient")

Boundaries = tuple[int, ...]
"""``(0, …, n)``: stage s holds layers ``boundaries[s]`` up to, not including, ``boundaries[s + 1]``."""


@dataclass(frozen=True)
class SharedWeights:
    """Weights that several layers of a chain share; they are included in the first layer's numbers.

    Attributes
    ----------
    layers : tuple of int
        Ascending.
    parameters, frozen, gradients : int
        Bytes of trainable and of frozen weights, and of all gradients of the former.
    versions : int
        Versions of trainable weights that are kept.
    optimizer, update : array, shape (S,)
        Bytes of optimiser state and nanoseconds of the optimiser step of a copy on each stage's device.
    gather : array, shape (S,)
        Nanoseconds in which the replicas of a copy send each other what they have updated, at the begin of a step.
    reduced : array, shape (S,)
        Nanoseconds that these weights contribute to the all-reduce of the first layer's own stage.
    together : array, shape (S,)
        Nanoseconds of the all-reduce over all replicas of the stages with copies, if this stage is one of them: the
        minimum over the choices of the other stages.
    """

    layers: tuple[int, ...]
    parameters: int
    gradients: int
    optimizer: Array
    update: Array
    gather: Array
    reduced: Array
    together: Array
    frozen: int = 0
    versions: int = 1

    @property
    def kept(self) -> int:
        """Bytes of trainable weights that a copy keeps."""
        return self.versions * self.parameters

    @property
    def resident(self) -> Array:
        """Bytes of a copy: weights, gradients, optimiser state; shape (S,)."""
        return self.kept + self.gradients + self.frozen + self.optimizer

    def copied(self, a: int, b: int) -> bool:
        """Return whether a stage on layers a … b − 1 has a copy besides the one of the first layer's stage."""
        return bool(has_copy(self.layers, a, b))

    def left(self, a: int, b: int) -> bool:
        """Return whether a stage on layers a … b − 1 has the first layer while another stage has a copy."""
        return bool(is_home(self.layers, a, b))

    def home(self, together: Array) -> Array:
        """Return the nanoseconds that the joint all-reduce adds to the first layer's stage."""
        found: Array = np.maximum(together - self.reduced, 0)
        return found

    def as_tie(self, gathers: bool) -> Tie:
        """Convert to a tie of the partition problem. ``gathers``: updates include the gather."""
        update = self.update + self.gather if gathers else self.update
        rows = (self.resident, update, self.together, self.home(self.together))
        return Tie(self.layers, *(tuple(row.tolist()) for row in rows))

    def select(self, rows: list[int]) -> "SharedWeights":
        """Return the costs on some of the stages; any other of them may hold a copy."""
        least = np.full(len(rows), self.together.min())
        return replace(
            self,
            optimizer=self.optimizer[rows],
            update=self.update[rows],
            gather=self.gather[rows],
            reduced=self.reduced[rows],
            together=least,
        )


@dataclass(frozen=True, kw_only=True)
class Chain(LayerTables):
    """Costs of layers on the devices of S stages, in nanoseconds and bytes; `SHAPES` has the shape of each array.

    Attributes
    ----------
    names : tuple of str
        Layer names.
    groups : tuple of tuple of Device
        Device groups: the devices of ``groups[s]`` are the replicas of stage s, all of one kind.
    micro_batch : int
        Samples of a micro-batch.
    slices : int
        Token slices of a micro-batch: times of passes are sums over them, and what is saved, kept, sent and received is
        that of one.
    input_gradient, weight_gradient : array
        Parts of ``backward``.
    halves : bool
        Whether backwards are split into these parts.
    first_forward, first_backward, first_input_gradient, first_weight_gradient : array
        Times of the first slice, or of one round where layers are super layers, the least.
    least_first_part, least_second_part : array
        The least times of both parts of backwards of which each may be joined or split.
    rounds : int
        Stages of each device that a row stands for, where layers are super layers.
    turns : bool
        Whether every second round of these passes the devices from the last one to the first.
    unlike_slices : tuple of tuple of array, optional
        For each stage those four times of each slice, shape (slices, n), where their lengths differ.
    parts, whole : array
        Time of both parts without recomputation; that of the backwards of layers whose parts are not known.
    lost : array
        Computation of a step that is not done while the layer's collectives run beside it. ``reduce`` and ``gather``
        are shorter by that, and it follows the last backward.
    parameters : array
        Bytes of trainable parameters.
    weights, gradients, optimizer : array
        Bytes of parameters, gradients and optimiser state that a replica keeps.
    frozen : array
        Bytes of frozen weights that it keeps.
    resident : array
        Static bytes: the sum of these four.
    forward_workspace : array
        The part of ``workspace`` that the layer's forward needs (see `pipeplan.core.pipeline.Stage`).
    boundary : array
        Bytes over each cut on each link, in either direction, as the kind of device before the link has them.
    received : array
        Bytes that the stage behind each link keeps of them.
    send, latency : array
        Transfer time and latency in either direction; the least over pairs of replicas.
    busiest : tuple of (int, tuple of int)
        For each link the micro-batches that use its busiest resource: the period L after which the pairs of replicas
        repeat, and the remainders of these micro-batches modulo L.
    limit, runtime : array
        Bytes that a device has (`UNLIMITED` where it has no limit), and the bytes of them that its runtime takes.
    overlap : Overlap
    zero, staleness : int
        Level of ZeRO; batches by which gradients are late.
    split : Splitting or None
        What teams split, where devices are teams.
    passes : tuple of (Passes or None)
        For each stage its passes if they wait for collectives; ``forward`` and ``backward`` are lower bounds then. By
        default no stage's do.
    forward_flops : array, shape (n,)
        Per micro-batch; the forward times of the first device where the model has no FLOPs.
    shared : tuple of SharedWeights
    blocks : tuple of int
        The first layer of each block of the model, and the layer behind the last; by default every layer is one.
    hops : dict of (int, int) to Hop
        The transfers over a link, by its number and their bytes, as far as pipelines have been assembled.
    """

    # Axes: S stages, L = S − 1 links, n layers, c = n − 1 cuts.
    SHAPES: ClassVar = {
        **dict.fromkeys(("forward", "backward", "input_gradient", "weight_gradient", "update"), ("Sn",)),
        **dict.fromkeys(("parts", "whole", *EITHER, *FIRST), ("Sn",)),
        **dict.fromkeys(("reduce", "hides", "gather", "gather_hides", "lost"), ("Sn",)),
        **dict.fromkeys(("weights", "gradients", "optimizer", "frozen", "resident"), ("Sn",)),
        **dict.fromkeys(("saved", "output", "workspace", "rebuilt", "forward_workspace"), ("Sn",)),
        **dict.fromkeys(("parameters", "recomputable"), ("n",)),
        **dict.fromkeys(("reduce_base", "gather_base", "limit", "runtime"), ("S",)),
        **dict.fromkeys(("boundary", "received", "send"), ("Lc",)),
        "latency": ("L",),
    }

    names: tuple[str, ...]
    groups: tuple[tuple[Device, ...], ...]
    micro_batch: int
    input_gradient: Array
    weight_gradient: Array
    slices: int = 1
    rounds: int = 1
    turns: bool = False
    halves: bool = False
    first_forward: Array = LEFT_OUT
    first_backward: Array = LEFT_OUT
    first_input_gradient: Array = LEFT_OUT
    first_weight_gradient: Array = LEFT_OUT
    unlike_slices: tuple[tuple[Array, ...], ...] | None = None
    least_first_part: Array = LEFT_OUT
    least_second_part: Array = LEFT_OUT
    parts: Array = LEFT_OUT
    whole: Array = LEFT_OUT
    lost: Array = LEFT_OUT
    parameters: Array = LEFT_OUT
    weights: Array = LEFT_OUT
    gradients: Array = LEFT_OUT
    optimizer: Array = LEFT_OUT
    frozen: Array = LEFT_OUT
    forward_workspace: Array = LEFT_OUT
    boundary: Array = LEFT_OUT
    received: Array = LEFT_OUT
    busiest: tuple[tuple[int, tuple[int, ...]], ...]
    runtime: Array = LEFT_OUT
    overlap: Overlap
    forward_flops: Array
    zero: int = 0
    staleness: int = 0
    split: Splitting | None = None
    passes: tuple[Passes | None, ...] = ()
    shared: tuple[SharedWeights, ...] = ()
    blocks: tuple[int, ...] = ()
    hops: dict[tuple[int, int], Hop] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stages, layers = self.forward.shape
        self.fill({"S": stages, "L": stages - 1, "n": layers, "c": layers - 1})
        object.__setattr__(self, "resident", self.weights + self.gradients + self.optimizer + self.frozen)
        object.__setattr__(self, "passes", self.passes or (None,) * stages)
        object.__setattr__(self, "blocks", self.blocks or tuple(range(layers + 1)))

    @property
    def in_halves(self) -> "Chain":
        """The same chain for split backwards, of which the last weight gradients hide sums of gradients."""
        hidden = self.hides.any(axis=1, keepdims=True)
        last = self.first_weight_gradient if self.slices > 1 else self.weight_gradient
        return replace(self, hides=np.where(hidden, last, 0), halves=True)

    @cached_property
    def overlaps(self) -> bool:
        """True if gradients are summed while the last backward runs."""
        return bool(self.hides.any())

    @property
    def stages(self) -> int:
        """S: the number of stages."""
        return len(self.groups)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of replicas of each stage."""
        return tuple(len(group) for group in self.groups)

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, stage by stage, replica by replica."""
        return tuple(device for group in self.groups for device in group)

    @property
    def ends_tied(self) -> bool:
        """Whether the first and the last layer share trained weights: the first and last of several stages do then."""
        trained = [shared.layers for shared in self.shared if shared.parameters]
        return any((layers[0], layers[-1]) == (0, self.layers - 1) for layers in trained)

    def copies(self, a: int, b: int) -> tuple[SharedWeights, ...]:
        """Return the shared weights of which a stage on layers a … b − 1 holds a copy besides the original."""
        return tuple(shared for shared in self.shared if shared.copied(a, b))

    def stays(self, s: int, a: int, b: int) -> int:
        """Return the static bytes of a replica of stage s with layers a … b − 1, copies of shared weights included."""
        return int(self.resident[s, a:b].sum()) + sum(int(shared.resident[s]) for shared in self.copies(a, b))

    @property
    def passages(self) -> int:
        """Tensors of a micro-batch that each link carries in one direction: slices, or rounds in a loop."""
        return self.slices * (self.rounds if not self.turns else 1)

    def link_counts(self, micro_batches: int) -> Array:
        """Return the tensors on the busiest resource of each link in a step and one direction, shape (S − 1,)."""
        counts = [sum(-(-(micro_batches - m) // period) for m in remainders) for period, remainders in self.busiest]
        least = np.maximum(np.array(counts, np.int64), 1)  # with few micro-batches another resource is used
        return self.passages * least

    def head(self, stages: int) -> "Chain":
        """Return the same chain on the first ``stages`` stages."""
        return self.select(tuple(range(stages)))

    def select(self, rows: tuple[int, ...]) -> "Chain":
        """Return the same chain on some of the stages. Between former non-neighbours the slowest link counts.

        This is an estimate for partitioners, of stages without replicas: a plan is priced on its own devices.
        """
        kept = list(rows)
        hops = [slice(a, b) for a, b in pairwise(kept)]
        return replace(
            self,
            **self.of_rows(kept),
            groups=tuple(self.groups[s] for s in kept),
            boundary=self.boundary[kept[:-1]],
            received=self.received[kept[:-1]],
            send=np.array([self.send[hop].max(axis=0) for hop in hops], np.int64).reshape(len(hops), self.layers - 1),
            latency=np.array([self.latency[hop].max() for hop in hops], np.int64),
            busiest=tuple(self.busiest[s] for s in kept[:-1]),
            shared=tuple(weights.select(kept) for weights in self.shared),
            passes=tuple(self.passes[s] for s in kept),
        )
