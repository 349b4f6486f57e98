"""`Table`: layer costs on one kind of device as arrays."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from pipeplan.core.model import Layer, LayerCost, Model
from pipeplan.core.slicing import Slicing
from pipeplan.costs.chain import Array

TIMES = ("forward", "backward", "input_gradient", "weight_gradient", "update")


class Table:
    """Costs on one kind of device at one micro-batch size: arrays of shape (n,), and the bytes over each cut.

    ``again``: every layer is recomputed in its backward. ``keys``: bytes of keys and values of each layer's attention,
    and of their gradients, of one slice.

    Where sequences run in slices, ``forward`` and ``backward`` are the sums over all of them, ``first_forward`` and
    ``first_backward`` those of the first; all else is of one slice. Slices of unlike lengths, whose ``costs`` are
    those of the longest, have ``slices``: the times of each, two arrays of shape (S, n). ``lengths`` has the costs of
    each length.
    """

    def __init__(
        self,
        model: Model,
        costs: tuple[LayerCost, ...],
        again: bool,
        keys: tuple[tuple[int, int], ...] = (),
        lengths: Mapping[int, tuple[LayerCost, ...]] = MappingProxyType({}),
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
        self.slices: tuple[Array, Array] | None = None
        if model.slicing is not None and lengths:
            self.slices = forwards, backwards = _of_lengths(model.slicing, lengths)
            self.forward, self.backward = forwards.sum(axis=0), backwards.sum(axis=0)
            self.first_forward, self.first_backward = forwards[0], backwards[0]
        elif model.slicing is not None:
            layers = model.slicing.layers
            shares = ([layer.forward for layer in layers], [layer.backward for layer in layers])
            (self.forward, self.first_forward), (self.backward, self.first_backward) = (
                _of_slices(mean, share, model.slices)
                for mean, share in zip((self.forward, self.backward), shares, strict=True)
            )
        if model.slicing is not None:
            kept, gradients = np.array(keys, np.int64).T
            self.saved, self.output = self.saved + gradients, self.output + kept + gradients
        if again:
            self.backward, self.input_gradient = self.backward + self.forward, self.input_gradient + self.forward
            self.first_backward = self.first_backward + self.first_forward
            self.slices = self.slices and (self.slices[0], self.slices[1] + self.slices[0])
            self.workspace, self.saved = self.workspace + self.saved, self.output


def _of_slices(mean: Array, shares: list[Fraction], count: int) -> tuple[Array, Array]:
    """Return the times of all slices together, and of the first, given those of one of average work.

    Slice k takes mean − S w + (2 k + 1) w, where S w is the part of attention, rounded down.
    """
    steps = [int(time * share) // count for time, share in zip(mean.tolist(), shares, strict=True)]
    return mean * count, mean - (count - 1) * np.array(steps, np.int64)


def _of_lengths(slicing: Slicing, costs: Mapping[int, tuple[LayerCost, ...]]) -> tuple[Array, Array]:
    """Return the times of all layers, slice by slice, forward and backward.

    Of the time t of a slice of l tokens the part w = ⌊φ t⌋ is attention that looks back on (T − l) / 2 tokens. Behind j
    tokens it takes ⌊w (2 j + l) / T⌋.
    """
    total, before = sum(slicing.lengths), 0
    found: tuple[list[list[int]], list[list[int]]] = [], []
    for length in slicing.lengths:
        for rows, name in zip(found, ("forward", "backward"), strict=True):
            times = [getattr(cost, name) for cost in costs[length]]
            parts = [int(t * getattr(layer, name)) for t, layer in zip(times, slicing.layers, strict=True)]
            looks = 2 * before + length
            rows.append([t - w + w * looks // total for t, w in zip(times, parts, strict=True)])
        before += length
    return np.array(found[0], np.int64), np.array(found[1], np.int64)


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
