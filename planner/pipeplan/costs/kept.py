"""`Kept`: bytes of a layer's weights, gradients and optimiser state on one of several replicas of a stage."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.shared_weights import merge_overlapping
from pipeplan.costs.chain import Array
from pipeplan.costs.folded import total
from pipeplan.costs.layers import gradient_bytes, item_size, optimizer_bytes
from pipeplan.costs.sharded import Units

AT_ONCE = 2**20
"""Most numbers of a share that a replica sends at once as gradients are summed at levels 2 and 3 of ZeRO."""


class Kept:
    """What replicas keep of a model at a job's level of ZeRO, by kind of device: teams have parts of the layers."""

    def __init__(self, model: Model, job: Job) -> None:
        self.model, self.job = model, job
        self.versions = 1 + job.staleness
        """Versions of trained weights, and buffers of their gradients."""
        self._parameters: dict[str, Array] = {}
        self._frozen: dict[str, Array] = {}
        self._optimizer: dict[str, Array] = {}
        self._gradients: dict[str, Array] = {}
        self._units: dict[tuple[str, bool], Units] = {}
        self._together_resident: dict[tuple[str, int], int] = {}

    def parameters(self, kind: DeviceKind) -> Array:
        """Bytes of trainable parameters of each layer on a kind of device; shape (n,)."""
        if kind.name not in self._parameters:
            self._parameters[kind.name] = np.array(self.model.parameters_on(kind.name), np.int64)
        return self._parameters[kind.name]

    def frozen(self, kind: DeviceKind) -> Array:
        """Bytes of frozen weights of each layer on a kind of device; shape (n,)."""
        if kind.name not in self._frozen:
            self._frozen[kind.name] = np.array(self.model.frozen_on(kind.name), np.int64)
        return self._frozen[kind.name]

    def optimizer(self, kind: DeviceKind) -> Array:
        """Bytes of optimiser state of each layer, before sharding; shape (n,)."""
        if kind.name not in self._optimizer:
            self._optimizer[kind.name] = self._of_each(kind, self.state_of)
        return self._optimizer[kind.name]

    @cached_property
    def _together(self) -> tuple[tuple[int, ...], ...]:
        """Layers that share weights, by number."""
        index = {name: i for i, name in enumerate(self.model.names)}
        return merge_overlapping([index[name] for name in tie.layers] for tie in self.model.ties)

    def units(self, kind: DeviceKind, frozen: bool = False) -> Units:
        """Bytes that are gathered or summed together at levels 2 and 3, with frozen weights or without."""
        key = kind.name, frozen
        if key not in self._units:
            sizes = self.parameters(kind) + self.frozen(kind) * frozen
            self._units[key] = Units.of(sizes, self._together)
        return self._units[key]

    def returns(self, kind: DeviceKind, backward: Array) -> NDArray[np.bool_]:
        """Layers whose weights a backward needs, given its nanoseconds: not those frozen layers that have none."""
        needs: NDArray[np.bool_] = (self.parameters(kind) > 0) | (backward > 0) | (self.frozen(kind) == 0)
        for layers in self._together:
            needs[list(layers)] = needs[list(layers)].any()
        return needs

    def state_of(self, parameters: int) -> int:
        """Bytes of optimiser state for so many bytes of parameters."""
        return optimizer_bytes(parameters, self.model.dtype, self.job.optimizer, self.job.state_bytes)

    def gradients_of(self, parameters: int) -> int:
        """Bytes in which gradients of so many bytes of parameters are kept."""
        return self.versions * gradient_bytes(parameters, self.model.dtype, self.job.gradient_bytes)

    def whole_gradients(self, kind: DeviceKind) -> Array:
        """Bytes in which gradients of each layer are kept, before sharding; shape (n,)."""
        if kind.name not in self._gradients:
            self._gradients[kind.name] = self._of_each(kind, self.gradients_of)
        return self._gradients[kind.name]

    def _of_each(self, kind: DeviceKind, of: Callable[[int], int]) -> Array:
        """What belongs to the bytes of each layer's parameters, of super layers to each of theirs; shape (n,)."""
        model, folding = self.model.unfolded or self.model, self.model.folding
        sizes = model.parameters_on(kind.name)
        known = {size: of(size) for size in set(sizes)}
        found = np.array([known[size] for size in sizes], np.int64)
        return found if folding is None else total(folding, found)

    def _share(self, sizes: Array, replicas: int, least: int) -> Array:
        """What one of so many replicas keeps of these bytes, which are shared out from level ``least`` on."""
        return -(-sizes // replicas) if self.job.level >= least else sizes

    def weights(self, kind: DeviceKind, replicas: int) -> Array:
        """Bytes of each layer's parameters that one of so many replicas keeps; shape (n,).

        At level 2 it keeps its share beside the whole.
        """
        every = self.versions * self.parameters(kind)
        whole = every if self.job.level <= SHARDED or replicas == 1 else np.zeros_like(every)
        share = -(-every // replicas) if self.job.level >= SHARDED and replicas > 1 else 0 * whole
        kept: Array = whole + share
        return kept

    def gradients(self, kind: DeviceKind, replicas: int) -> Array:
        """Bytes of each layer's gradients that one of so many replicas keeps; shape (n,)."""
        return self._share(self.whole_gradients(kind), replicas, SHARDED)

    def state(self, kind: DeviceKind, replicas: int) -> Array:
        """Bytes of each layer's optimiser state that one of so many replicas keeps; shape (n,)."""
        return self._share(self.optimizer(kind), replicas, 1)

    def frozen_kept(self, kind: DeviceKind, replicas: int) -> Array:
        """Bytes of each layer's frozen weights that one of so many replicas keeps: whole below level 3; shape (n,)."""
        return self._share(self.frozen(kind), replicas, WHOLLY_SHARDED)

    def resident(self, kind: DeviceKind, replicas: int) -> Array:
        """Static bytes of each layer on one of so many replicas; shape (n,)."""
        trained = self.weights(kind, replicas) + self.gradients(kind, replicas) + self.state(kind, replicas)
        return trained + self.frozen_kept(kind, replicas)

    def resident_together(self, kind: DeviceKind, replicas: int) -> int:
        """Static bytes of all layers, each on one of so many replicas; kept, for layouts of all micro-batch sizes."""
        key = kind.name, replicas
        if key not in self._together_resident:
            self._together_resident[key] = int(self.resident(kind, replicas).sum())
        return self._together_resident[key]

    def with_buffers(self, kind: DeviceKind, workspace: Array, backward: Array, replicas: int) -> Array:
        """Bytes that one of so many replicas needs beside what it holds while a layer computes; shape (n,).

        ``workspace`` is what the layer itself needs, ``backward`` its nanoseconds; see `Units.with_buffers`.
        """
        if self.job.level < SHARDED or replicas == 1:
            return workspace
        at_once = AT_ONCE * item_size(self.model.dtype)
        every = self.job.level == WHOLLY_SHARDED
        back = self.returns(kind, backward) if every else None  # at level 2 backwards gather nothing
        gathered = self.units(kind, frozen=every)
        return self.units(kind).with_buffers(workspace, replicas, at_once, every, gathered, back)

    def shares(self, replicas: int) -> int:
        """Number of shares of which so many replicas update one each."""
        return replicas if self.job.level else 1
