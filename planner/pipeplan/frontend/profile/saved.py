"""Saved bytes, which a layer keeps until backward, and workspace bytes, which exist only while it computes.

Hooks of autograd report every saved tensor. Each storage is counted once, whole, and with the layer that made it:

* an input that layer i saves is an output of an earlier layer, and counts there;
* an output that no layer saves (a linear layer's before a ReLU) is freed after its last reader, and counts nowhere;
* parameters, buffers and the batch itself do not count;
* a weight that mixed precision converts counts with its layer, though all micro-batches of a step share it.

So stage [a, b) holds, for one micro-batch, the saved bytes of layers a … b − 1 and the tensors that it received.

For layers that are measured one at a time, `PassedTensors` assigns the tensors that pass between them:

::

    layer0 ──a──▶ layer1 ──b──▶ layer2        b is saved by layer2 alone: it still counts with layer1
             ╰────a────╯                      a is saved by no layer: it exists while layer1 runs, then is freed

Workspace is temporaries, gradients in transit, and inputs that no layer saves. While layer i runs, forward or backward,
a stage holds the saved bytes of layers 0 … i. All bytes beyond these, at the peak, are layer i's workspace. They
include the last output of the sequence and its gradient, which the engine holds throughout, as for each stage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.errors import InputError
from pipeplan.core.model import LayerCost
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.capture.private import FakeTensor, memory_of
from pipeplan.frontend.parameters import bytes_of
from pipeplan.frontend.profile.meter import meter_for
from pipeplan.frontend.profile.passes import Feed, run_layer, run_pass


@dataclass(frozen=True)
class SavedBytes:
    """Saved and output bytes per layer, and the tensors at both ends.

    Attributes
    ----------
    saved : tuple of int
        Bytes made by the layer and kept until backward.
    output : tuple of int
        Bytes that the layer passes on, including tensors that it was given.
    outputs : tuple of Tensor
        Outputs of the last layer; ``requires_grad`` is true if a gradient comes back.
    kept : frozenset of int
        Addresses of the storages that are kept. Those of inputs and last outputs still exist.
    dropped : tuple of int
        Bytes of each layer's outputs, that are not kept: they exist until they are read.
    """

    saved: tuple[int, ...]
    output: tuple[int, ...]
    outputs: tuple[Tensor, ...]
    kept: frozenset[int]
    dropped: tuple[int, ...] = ()


def saved_bytes(layers: Sequence[nn.Module], feed: Feed) -> SavedBytes:
    """Measure the saved bytes of one forward pass, the loss included."""
    # by address of the storage: the layer that made it (below 0: parameters, buffers, inputs), and its bytes
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
        held.append(tensor.detach())
        return held[-1]

    # held until the end, so that no address is used twice, even if what is saved belongs to a branch that nothing reads
    held: list[Tensor] = []
    passed: list[tuple[Tensor, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), feed.cast():
        for current, layer in enumerate(layers):  # `pack` reads `current`
            returned = _noted(current, run_layer, layer, values)
            values = tensors(returned)
            passed.append(tuple(value.detach().requires_grad_(value.requires_grad) for value in values))
            for value in values:
                owner.setdefault(address(value), current)
        if feed.loss is not None:
            _noted(len(layers), feed.loss, returned, feed.targets)

    # a kept storage counts with the layer that made it
    saved = [0] * len(layers)
    for key in kept:
        if owner[key] >= 0:
            saved[owner[key]] += size[key]
    homes = [{address(value): value.untyped_storage().nbytes() for value in values} for values in passed]
    dropped = tuple(
        sum(nbytes for key, nbytes in own.items() if key not in kept and owner.get(key, _INPUT) >= 0) for own in homes
    )
    return SavedBytes(tuple(saved), tuple(map(bytes_of, passed)), passed[-1], frozenset(kept), dropped)


def _noted(number: int, call: Callable[..., Any], *args: Any) -> Any:
    """Call; an error gets the number of the layer as a note."""
    try:
        return call(*args)
    except Exception as error:
        if "support saved tensor hooks" in str(error):
            raise InputError(
                "torch.func takes gradients in a forward (grad, vjp, jacrev or hessian), and meanwhile torch cannot "
                "say what is kept for the backward: write them with torch.autograd.grad(..., create_graph=True)"
            ) from error
        error.add_note(f"{NOTE}{number}")
        raise


NOTE = "layer number "
_LASTING, _INPUT = -1, -2


def address(tensor: Tensor) -> int:
    """Address of the tensor's storage, valid while the storage exists; a number that stands for it without values."""
    without = isinstance(tensor, FakeTensor) or tensor.is_meta
    return int(memory_of(tensor) if without else tensor.untyped_storage().data_ptr())


@dataclass(eq=False)
class _PassedTensor:
    """One storage passed between segments: the segment that made it, and if its last layer's saved bytes contain it."""

    made_by: int
    size: int
    counted: bool
    kept: bool


class PassedTensors:
    """Accounting of the tensors passed from segment to segment, for one micro-batch size."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._passing = {address(tensor): _PassedTensor(-1, 0, True, True) for tensor in inputs}
        self._read: list[tuple[_PassedTensor, ...]] = []
        self._all: list[_PassedTensor] = []

    def follow(self, held: SavedBytes) -> None:
        """Add the next segment, while its inputs still exist."""
        # the segment reads all storages that pass, and may save some of them
        number = len(self._read)
        self._read.append(tuple(self._passing.values()))
        for key, parcel in self._passing.items():
            parcel.kept |= key in held.kept
        # its outputs pass next: those that it relays, and those that it made
        passing = {}
        for tensor in held.outputs:
            key = address(tensor)
            if key in self._passing:
                passing[key] = self._passing[key]
            elif key not in passing:
                kept = key in held.kept
                passing[key] = _PassedTensor(number, tensor.untyped_storage().nbytes(), kept, kept)
        self._all += [parcel for key, parcel in passing.items() if key not in self._passing]
        self._passing = passing

    def settle(self, segments: Sequence[Sequence[LayerCost]]) -> tuple[LayerCost, ...]:
        """Costs of all layers in order, with passed bytes assigned to the layers that made them."""
        # a storage saved by a later segment only counts with the last layer of the segment that made it
        rows = [list(segment) for segment in segments]
        for parcel in self._all:
            if parcel.kept and not parcel.counted:
                maker = rows[parcel.made_by]
                maker[-1] = replace(maker[-1], saved=maker[-1].saved + parcel.size)
        # a storage saved by no segment is workspace of every segment that reads it
        for row, read in zip(rows, self._read, strict=True):
            gone = sum(parcel.size for parcel in read if not parcel.kept)
            row[0] = replace(row[0], workspace=row[0].workspace + gone)
        return tuple(cost for row in rows for cost in row)


def workspace_bytes(layers: Sequence[nn.Module], feed: Feed, saved: Sequence[int], device: torch.device) -> list[int]:
    """Measure the workspace bytes of each layer in one joined pass, into existing gradients.

    Parameters
    ----------
    saved : sequence of int
        Bytes that each layer keeps until backward (see `pipeplan.frontend.profile.saved`).

    Returns
    -------
    list of int
        One entry per layer.
    """
    order: list[tuple[bool, int]] = []
    meter = meter_for(device)

    def note(forward: bool, number: int) -> None:
        order.append((forward, number))
        meter.mark()

    with meter:
        run_pass(layers, feed, lambda number: note(True, number), lambda number: note(False, number))
    # held[i]: saved bytes of layers 0 … i; a reading's peak beyond them is workspace of the layer that ran until it
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
