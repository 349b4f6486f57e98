"""Devices with memory on the chip: what a layer takes when its weights lie there, and when they are streamed.

A device whose on-chip memory holds a stage's parameters and gradients reads and writes them there; only activations
pass its memory. Otherwise both stream through memory for every micro-batch, and a pass takes the longer of its
arithmetic and its traffic. Gradients count because every micro-batch adds to them; the optimiser's state is touched
once a step and stays in memory. Whether BaPipe counts gradients too is not known to us.
"""

from dataclasses import dataclass

import numpy as np

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import Model
from pipeplan.costs.chain import Array
from pipeplan.costs.layers import layer_costs


@dataclass(frozen=True)
class StreamedTimes:
    """Nanoseconds of every layer for one micro-batch, each of shape (n,)."""

    forward_on_chip: Array
    backward_on_chip: Array
    forward_streamed: Array
    backward_streamed: Array


def streamed_times(
    model: Model, kind: DeviceKind, micro_batch: int, *, extrapolate: bool = False, optimizer: str = "sgd"
) -> StreamedTimes:
    """Each layer's times both ways. On a kind that is profiled, or has no on-chip memory, they are the same.

    Raises
    ------
    InputError
        As `pipeplan.costs.layers.layer_costs`.
    """
    near, far = (
        layer_costs(model, kind, micro_batch, extrapolate=extrapolate, optimizer=optimizer, weights_on_chip=on_chip)
        for on_chip in (kind.on_chip is not None, False)
    )
    return StreamedTimes(
        *(np.array([getattr(cost, name) for cost in costs], np.int64) for costs in (near, far) for name in LANES)
    )


LANES = ("forward", "backward")
