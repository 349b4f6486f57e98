"""A model priced on a row of devices, for one micro-batch size: what balancers cut and formulations minimise.

Row s of each table belongs to the s-th device of the row; column i to layer i; cut c lies between layers c and c + 1.
"""

from dataclasses import dataclass, replace

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
        rows = slice(0, stages)
        links = slice(0, stages - 1)
        return replace(
            self,
            devices=self.devices[:stages],
            forward=self.forward[rows],
            backward=self.backward[rows],
            input_gradient=self.input_gradient[rows],
            weight_gradient=self.weight_gradient[rows],
            update=self.update[rows],
            send=self.send[links],
            latency=self.latency[links],
            limit=self.limit[rows],
            runtime=self.runtime[rows],
        )
