"""Bytes that each layer makes and autograd keeps until backward.

Autograd tells every tensor that it saves. Each storage is counted once, whole, and belongs to the layer that made it:

* what layer i saves of its inputs is output of an earlier layer, and counts there;
* an output that nobody saves (a linear layer's before a ReLU) is gone once its last reader has read it, and counts
  nowhere;
* parameters, buffers and the batch itself do not count;
* a weight that mixed precision converts counts with its layer, though all micro-batches of a step share it.

So the saved bytes of layers a … b − 1, and what stage [a, b) received, are what a stage holds for one micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import tensors
from pipeplan.frontend.profile.passes import Feed, run_layer
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
