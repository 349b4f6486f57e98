"""A model priced on a row of devices, for one micro-batch size: what balancers cut and formulations minimise.

Row s of each table belongs to the s-th device of the row; column i to layer i; cut c lies between layers c and c + 1.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeplan.cluster import Device, Overlap

Array = NDArray[np.int64]
Boundaries = tuple[int, ...]
"""``(0, …, n)``: stage s holds layers ``boundaries[s]`` up to, not including, ``boundaries[s + 1]``."""

UNLIMITED = 2**62
"""Stands for the memory of a device that has no limit."""


@dataclass(frozen=True)
class Chain:
    """Times in nanoseconds, sizes in bytes.

    Attributes
    ----------
    names : tuple of str
        Layer names.
    devices : tuple of Device
        The row: device s runs stage s.
    micro_batch : int
        Samples.
    forward, backward, input_gradient, weight_gradient, update : array, shape (S, n)
    parameters : array, shape (n,)
        Bytes of trainable parameters.
    gradients, optimizer : array, shape (n,)
        Bytes that each layer's gradients and optimiser state take.
    saved, workspace : array, shape (n,)
        Bytes kept for backward per micro-batch in flight; bytes that live only while the layer computes.
    boundary : array, shape (n − 1,)
        Bytes that cross each cut.
    send : array, shape (S − 1, n − 1)
        Nanoseconds that the bytes of a cut keep link s busy, in either direction.
    latency : array, shape (S − 1,)
    limit, runtime : array, shape (S,)
        Bytes a device has (`UNLIMITED` where it has no limit), and bytes its runtime takes of them.
    overlap : Overlap
    forward_flops : array, shape (n,)
        Per micro-batch; the forward times of the first device where the model knows no FLOPs.
    """

    names: tuple[str, ...]
    devices: tuple[Device, ...]
    micro_batch: int
    forward: Array
    backward: Array
    input_gradient: Array
    weight_gradient: Array
    update: Array
    parameters: Array
    gradients: Array
    optimizer: Array
    saved: Array
    workspace: Array
    boundary: Array
    send: Array
    latency: Array
    limit: Array
    runtime: Array
    overlap: Overlap
    forward_flops: Array

    @property
    def stages(self) -> int:
        """S: the length of the row."""
        return len(self.devices)

    @property
    def layers(self) -> int:
        """n."""
        return len(self.names)

    @property
    def resident(self) -> Array:
        """Bytes of each layer that stay for the whole step: parameters, gradients, optimiser state."""
        return self.parameters + self.gradients + self.optimizer

    def head(self, stages: int) -> "Chain":
        """The same chain on the first ``stages`` devices of the row."""
        return self.select(tuple(range(stages)))

    def select(self, rows: tuple[int, ...]) -> "Chain":
        """The same chain on some devices of the row. Between two that were not neighbours lies the slower way."""
        kept = list(rows)
        hops = [slice(a, b) for a, b in pairwise(kept)]
        return replace(
            self,
            devices=tuple(self.devices[s] for s in kept),
            forward=self.forward[kept],
            backward=self.backward[kept],
            input_gradient=self.input_gradient[kept],
            weight_gradient=self.weight_gradient[kept],
            update=self.update[kept],
            send=np.array([self.send[hop].max(axis=0) for hop in hops], np.int64).reshape(len(hops), self.layers - 1),
            latency=np.array([self.latency[hop].max() for hop in hops], np.int64),
            limit=self.limit[kept],
            runtime=self.runtime[kept],
        )
