"""`Table`: layer costs on one kind of device as arrays."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from pipeplan.core.folding import Folding
from pipeplan.core.model import Layer, LayerCost, Model
from pipeplan.core.slicing import PASSES, Shares, Slicing
from pipeplan.costs.chain import EITHER, Array
from pipeplan.costs.folded import least, least_crossing, least_largest, total, way_ahead
from pipeplan.costs.slices import SliceCosts

TIMES = (*PASSES, "update")
BYTES = ("saved", "output", "workspace")


class Table:
    """Costs on one kind of device at one micro-batch size: arrays of shape (n,), and the bytes over each cut.

    ``again``: every layer is recomputed in its backward. ``keys``: bytes of keys and values of each layer's attention,
    and of their gradients, of one slice. ``shares``: what part of slices' times attention is.

    Where sequences run in slices, times of passes are the sums over all of them, ``first_forward`` and the like those
    of the first; all else is of one slice. Slices of unlike lengths, whose ``costs`` are those of the longest, have
    ``slices``: the times of each, an array of shape (S, n) for each of `PASSES`. ``lengths`` has the costs of each
    length.

    Of super layers, for which ``costs`` are those of the unfolded model, ``first_forward`` and the like are times of
    one round: the least, or in a V the first.
    """

    forward: Array
    backward: Array
    input_gradient: Array
    weight_gradient: Array
    update: Array
    saved: Array
    output: Array
    workspace: Array

    def __init__(
        self,
        model: Model,
        costs: tuple[LayerCost, ...],
        shares: Shares = (),
        again: bool = False,
        keys: tuple[tuple[int, int], ...] = (),
        lengths: Mapping[int, SliceCosts] = MappingProxyType({}),
    ) -> None:
        for name in (*TIMES, *BYTES):
            setattr(self, name, np.array([getattr(cost, name) for cost in costs], np.int64))
        # nanoseconds of both parts of the backward, and of backwards whose parts are not known
        self.parts = self.input_gradient + self.weight_gradient
        self.whole = np.where(self.parts == 0, self.backward, 0)
        # the two parts of a backward that may be joined or split, layer by layer: the least of each, and of both
        self.least_first_part = np.minimum(self.input_gradient, self.backward)
        self.least_second_part = np.maximum(np.minimum(self.backward, self.parts) - self.least_first_part, 0)
        self.boundary = crossing_bytes((model.unfolded or model).layers, costs)
        passes: list[Array] = [getattr(self, name) for name in PASSES]
        first = passes
        if model.folding is not None:
            first = [*way_ahead(model.folding, np.stack(passes))]
            self._fold(model.folding)
            passes = [getattr(self, name) for name in PASSES]
        self.forward_workspace = self.workspace
        self.slices: tuple[Array, ...] | None = None
        if model.slicing is not None and lengths:
            self.slices = _of_lengths(model.slicing, lengths)
            passes, first = [each.sum(axis=0) for each in self.slices], [each[0] for each in self.slices]
        elif model.slicing is not None:
            by_pass = zip(passes, zip(*shares, strict=True), strict=True)
            every = [_of_slices(mean, share, model.slices) for mean, share in by_pass]
            passes, first = [all_of_them for all_of_them, _ in every], [one for _, one in every]
        self.forward, self.backward, self.input_gradient, self.weight_gradient = passes
        self.first_forward, self.first_backward, self.first_input_gradient, self.first_weight_gradient = first
        if model.slicing is not None:
            kept, gradients = np.array(keys, np.int64).T
            self.saved, self.output = self.saved + gradients, self.output + kept + gradients
        if again:
            self.backward, self.input_gradient = self.backward + self.forward, self.input_gradient + self.forward
            self.first_backward = self.first_backward + self.first_forward
            self.least_first_part = self.least_first_part + self.forward
            self.first_input_gradient = self.first_input_gradient + self.first_forward
            if self.slices is not None:
                forwards, backwards, inputs, weights = self.slices
                self.slices = forwards, backwards + forwards, inputs + forwards, weights
            self.workspace, self.saved = self.workspace + self.saved, self.output

    @property
    def whole_passes(self) -> tuple[Array, ...]:
        """Forwards and joined backwards, without weight gradients, of all a device runs and of the way ahead."""
        none = np.zeros_like(self.forward)
        return self.forward, self.backward, none, self.first_forward, self.first_backward, none

    def split_passes(self, joins: bool) -> tuple[Array, ...]:
        """The same with input gradients, and weight gradients that may wait; ``joins``: some may be joined."""
        first = self.first_input_gradient
        if joins:
            parts = self.least_first_part, self.least_second_part
            ahead = np.minimum.reduce([first, self.first_backward, self.least_first_part])
            return self.forward, *parts, self.first_forward, ahead, np.zeros_like(first)
        parts = self.input_gradient, self.weight_gradient
        return self.forward, *parts, self.first_forward, first, self.first_weight_gradient

    def _fold(self, folding: Folding) -> None:
        """Take super layers in place of layers."""
        names = (*TIMES, "parts", "whole", *EITHER)
        for name, row in zip(names, total(folding, np.stack([getattr(self, name) for name in names])), strict=True):
            setattr(self, name, row)
        self.saved, self.output = least(folding, np.stack([self.saved, self.output]))
        self.workspace = least_largest(folding, self.workspace)
        self.boundary = least_crossing(folding, self.boundary)


def _of_slices(mean: Array, shares: Sequence[Fraction], count: int) -> tuple[Array, Array]:
    """Return the times of all slices together, and of the first, given those of one of average work.

    Slice k takes mean − S w + (2 k + 1) w, where S w is the part of attention, rounded down.
    """
    steps = [int(time * share) // count for time, share in zip(mean.tolist(), shares, strict=True)]
    return mean * count, mean - (count - 1) * np.array(steps, np.int64)


def _of_lengths(slicing: Slicing, costs: Mapping[int, SliceCosts]) -> tuple[Array, ...]:
    """Return the times of all layers, slice by slice, of each of `PASSES`.

    Of the time t of a slice of l tokens the part w = ⌊φ t⌋ is attention that looks back on (T − l) / 2 tokens. Behind j
    tokens it takes ⌊w (2 j + l) / T⌋.
    """
    total, before = sum(slicing.lengths), 0
    found: dict[str, list[list[int]]] = {name: [] for name in PASSES}
    for length in slicing.lengths:
        for (name, rows), shares in zip(found.items(), zip(*costs[length].shares, strict=True), strict=True):
            times = [getattr(cost, name) for cost in costs[length].costs]
            parts = [int(time * share) for time, share in zip(times, shares, strict=True)]
            looks = 2 * before + length
            rows.append([t - w + w * looks // total for t, w in zip(times, parts, strict=True)])
        before += length
    return tuple(np.array(rows, np.int64) for rows in found.values())


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
