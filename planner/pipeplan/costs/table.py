"""`Table`: layer costs on one kind of device as arrays."""

from fractions import Fraction
from itertools import accumulate

import numpy as np

from pipeplan.core.model import Layer, LayerCost, Model
from pipeplan.costs.chain import Array

TIMES = ("forward", "backward", "input_gradient", "weight_gradient", "update")


class Table:
    """Costs on one kind of device at one micro-batch size: arrays of shape (n,), and the bytes over each cut.

    ``again``: every layer is recomputed in its backward. ``keys``: bytes of keys and values of each layer's attention,
    and of their gradients, of one slice.

    Where sequences run in slices, ``forward`` and ``backward`` are the sums over all of them, ``first_forward`` and
    ``first_backward`` those of the first, the shortest; all else is of one slice.
    """

    def __init__(
        self, model: Model, costs: tuple[LayerCost, ...], again: bool, keys: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.forward, self.backward, self.input_gradient, self.weight_gradient, self.update = (
            np.array([getattr(cost, name) for cost in costs], np.int64) for name in TIMES
        )
        self.saved, self.output, self.workspace = (
            np.array([getattr(cost, name) for cost in costs], np.int64) for name in ("saved", "output", "workspace")
        )
        # nanoseconds of both parts of the backward, and of backwards whose parts are not known
        self.parts = self.input_gradient + self.weight_gradient
        self.whole = np.where(self.parts == 0, self.backward, 0)
        self.forward_workspace = self.workspace
        self.boundary = crossing_bytes(model.layers, costs)
        self.first_forward, self.first_backward = self.forward, self.backward
        if model.slicing is not None:
            layers = model.slicing.layers
            shares = ([layer.forward for layer in layers], [layer.backward for layer in layers])
            (self.forward, self.first_forward), (self.backward, self.first_backward) = (
                _of_slices(mean, share, model.slices)
                for mean, share in zip((self.forward, self.backward), shares, strict=True)
            )
            kept, gradients = np.array(keys, np.int64).T
            self.saved, self.output = self.saved + gradients, self.output + kept + gradients
        if again:
            self.backward, self.input_gradient = self.backward + self.forward, self.input_gradient + self.forward
            self.first_backward = self.first_backward + self.first_forward
            self.workspace, self.saved = self.workspace + self.saved, self.output


def _of_slices(mean: Array, shares: list[Fraction], count: int) -> tuple[Array, Array]:
    """Return the times of all slices together, and of the first, given those of one of average work.

    Slice k takes mean − S w + (2 k + 1) w, where S w is the part of attention, rounded down.
    """
    steps = [int(time * share) // count for time, share in zip(mean.tolist(), shares, strict=True)]
    return mean * count, mean - (count - 1) * np.array(steps, np.int64)


def crossing_bytes(layers: tuple[Layer, ...], costs: tuple[LayerCost, ...]) -> Array:
    """Return the bytes over each cut: the outputs of layers before it that some layer after it reads, each once."""
    index = {layer.name: i for i, layer in enumerate(layers)}
    last_reader = list(range(len(layers)))
    for i, layer in enumerate(layers):
        for source in layer.inputs:
            last_reader[index[source]] = i
    change = [0] * (len(layers) + 1)  # difference of the bytes over cut i and cut i − 1
    for i, reader in enumerate(last_reader):
        change[i] += costs[i].output if reader > i else 0
        change[reader] -= costs[i].output if reader > i else 0
    return np.array(list(accumulate(change))[: len(layers) - 1], np.int64)
