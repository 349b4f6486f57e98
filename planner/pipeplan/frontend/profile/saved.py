"""Bytes that a layer keeps until backward (saved), and bytes that live only while it computes (workspace).

Autograd tells every tensor that it saves. Each storage is counted once, whole, and belongs to the layer that made it:

* what layer i saves of its inputs is output of an earlier layer, and counts there;
* an output that nobody saves (a linear layer's before a ReLU) is gone once its last reader has read it, and counts
  nowhere;
* parameters, buffers and the batch itself do not count;
* a weight that mixed precision converts counts with its layer, though all micro-batches of a step share it.

So the saved bytes of layers a … b − 1, and what stage [a, b) received, are what a stage holds for one micro-batch.

Layers that are measured one at a time (`Joints`): whose bytes are the tensors that pass between them?

::

    layer0 ──a──▶ layer1 ──b──▶ layer2        b is saved by layer2 alone: it counts as layer1's all the same
             ╰────a────╯                      a is saved by nobody: it is there while layer1 runs, and then gone

Workspace is temporaries, gradients on their way, and inputs that nobody saves. While layer i runs, forward or backward,
a stage holds what layers 0 … i saved. All it has beyond that, at its peak, is layer i's workspace. That includes the
row's last output and its gradient, which the engine holds throughout, as it does for each stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from pipeplan.core.model import LayerCost
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.profile.meter import meter_for
from pipeplan.frontend.profile.passes import Feed, run_layer, run_pass
from pipeplan.frontend.profile.ties import bytes_of


@dataclass(frozen=True)
class SavedBytes:
    """One entry a layer, in bytes, and what became of the tensors at both ends.

    Attributes
    ----------
    saved : tuple of int
        Made by the layer and kept until backward.
    output : tuple of int
        What the layer passes on, also what it was given itself.
    outputs : tuple of Tensor
        Of the last layer; ``requires_grad`` tells whether a gradient comes back.
    kept : frozenset of int
        The storages that are kept, by address. Those of inputs and last outputs are still there.
    """

    saved: tuple[int, ...]
    output: tuple[int, ...]
    outputs: tuple[Tensor, ...]
    kept: frozenset[int]


def saved_bytes(layers: Sequence[nn.Module], feed: Feed) -> SavedBytes:
    """Watch one forward pass, the loss included."""
    owner: dict[int, int] = {}
    size: dict[int, int] = {}
    kept: set[int] = set()
    for layer in layers:
        for tensor in (*layer.parameters(), *layer.buffers()):
            owner[address(tensor)] = _LASTING
    values, returned = feed.leaves(), None
    for value in values:
        owner[address(value)] = _INPUT
    current = 0

    def pack(tensor: Tensor) -> Tensor:
        key = address(tensor)
        owner.setdefault(key, current)
        size[key] = tensor.untyped_storage().nbytes()
        kept.add(key)
        return tensor.detach()

    passed: list[tuple[Tensor, ...]] = []  # held until the end, so that no address is used twice
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), feed.cast():
        for current, layer in enumerate(layers):  # pack reads it
            returned = run_layer(layer, values)
            values = tensors(returned)
            passed.append(tuple(value.detach().requires_grad_(value.requires_grad) for value in values))
            for value in values:
                owner.setdefault(address(value), current)
        if feed.loss is not None:
            feed.loss(returned, feed.targets)

    saved = [0] * len(layers)
    for key in kept:
        if owner[key] >= 0:
            saved[owner[key]] += size[key]
    return SavedBytes(tuple(saved), tuple(map(bytes_of, passed)), passed[-1], frozenset(kept))


_LASTING, _INPUT = -1, -2


def address(tensor: Tensor) -> int:
    """Where the tensor's storage lies, while there is one."""
    return int(tensor.untyped_storage().data_ptr())


@dataclass(eq=False)
class _Parcel:
    """One storage on its way: the segment that made it, and whether its last layer's saved bytes contain it."""

    made_by: int
    size: int
    counted: bool
    kept: bool


class Joints:
    """Follows the tensors from segment to segment, for one micro-batch size."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._passing = {address(tensor): _Parcel(-1, 0, True, True) for tensor in inputs}
        self._read: list[tuple[_Parcel, ...]] = []
        self._all: list[_Parcel] = []

    def follow(self, held: SavedBytes) -> None:
        """One more segment, while what entered it is still there."""
        number = len(self._read)
        self._read.append(tuple(self._passing.values()))
        for key, parcel in self._passing.items():
            parcel.kept |= key in held.kept
        passing = {}
        for tensor in held.outputs:
            key = address(tensor)
            if key in self._passing:
                passing[key] = self._passing[key]
            elif key not in passing:
                kept = key in held.kept
                passing[key] = _Parcel(number, tensor.untyped_storage().nbytes(), kept, kept)
        self._all += [parcel for key, parcel in passing.items() if key not in self._passing]
        self._passing = passing

    def settle(self, segments: Sequence[Sequence[LayerCost]]) -> tuple[LayerCost, ...]:
        """All layers' costs in a row, with the bytes where they belong."""
        rows = [list(segment) for segment in segments]
        for parcel in self._all:
            if parcel.kept and not parcel.counted:
                maker = rows[parcel.made_by]
                maker[-1] = replace(maker[-1], saved=maker[-1].saved + parcel.size)
        for row, read in zip(rows, self._read, strict=True):
            gone = sum(parcel.size for parcel in read if not parcel.kept)
            row[0] = replace(row[0], workspace=row[0].workspace + gone)
        return tuple(cost for row in rows for cost in row)


def workspace_bytes(layers: Sequence[nn.Module], feed: Feed, saved: Sequence[int], device: torch.device) -> list[int]:
    """Measure one joined pass, into gradients that are there already.

    Parameters
    ----------
    saved : sequence of int
        Bytes that each layer keeps until backward (see `pipeplan.frontend.profile.saved`).

    Returns
    -------
    list of int
        One entry a layer.
    """
    order: list[tuple[bool, int]] = []
    meter = meter_for(device)

    def note(forward: bool, number: int) -> None:
        order.append((forward, number))
        meter.mark()

    with meter:
        run_pass(layers, feed, lambda number: note(True, number), lambda number: note(False, number))
    readings = meter.readings()
    held = list(accumulate(saved))
    workspace = [0] * len(layers)
    running: int | None = None  # the layer whose backward pass the last mark began
    for (forward, number), (_, peak) in zip(order, readings, strict=True):
        subject = number if forward else running
        if subject is not None and subject >= 0:
            workspace[subject] = max(workspace[subject], peak - held[subject])
        if not forward:
            running = number
    return workspace
