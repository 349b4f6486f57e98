"""Bytes that each layer makes and autograd keeps until backward.

Autograd tells every tensor that it saves. Each storage is counted once, whole, and belongs to the layer that made it:

* what layer i saves of its input is the output of layer i − 1, and counts there;
* an output that nobody saves (a linear layer's before a ReLU) is gone once the next layer has read it, and counts
  nowhere. The engine keeps it all the same where it is the last output of a stage;
* parameters, buffers and the batch itself do not count.

So the saved bytes of layers a … b − 1, and what stage [a, b) received, are what a stage holds for one micro-batch,
plus its last output where `SavedBytes.loose` says that nobody saves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pipeplan.profile.passes import Feed, run_layer


@dataclass(frozen=True)
class SavedBytes:
    """One entry a layer, in bytes.

    Attributes
    ----------
    saved : tuple of int
        Made by the layer and kept until backward.
    output : tuple of int
    loose : tuple of bool
        Whether the layer's output is kept by nobody.
    input_saved : bool
        Whether some layer saves the batch itself; it then belongs to the layer before, if there is one.
    """

    saved: tuple[int, ...]
    output: tuple[int, ...]
    loose: tuple[bool, ...]
    input_saved: bool


def saved_bytes(layers: Sequence[nn.Module], feed: Feed) -> tuple[SavedBytes, torch.Tensor]:
    """Watch one forward pass (the loss included); return the bytes, and the last layer's output."""
    owner: dict[int, int] = {}
    size: dict[int, int] = {}
    kept: set[int] = set()
    for layer in layers:
        for tensor in (*layer.parameters(), *layer.buffers()):
            owner[_key(tensor)] = _LASTING
    leaf = feed.leaf()
    owner[_key(leaf)] = _INPUT
    current = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key = _key(tensor)
        owner.setdefault(key, current)
        size[key] = tensor.untyped_storage().nbytes()
        kept.add(key)
        return tensor.detach()

    value = leaf
    outputs: list[torch.Tensor] = []  # held until the end, so that no address is used twice
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for current, layer in enumerate(layers):  # pack reads it
            value = run_layer(layer, value)
            outputs.append(value.detach())
            owner.setdefault(_key(value), current)
        if feed.loss is not None:
            value = feed.loss(value, feed.targets)

    saved = [0] * len(layers)
    for key in kept:
        if owner[key] >= 0:
            saved[owner[key]] += size[key]
    result = SavedBytes(
        saved=tuple(saved),
        output=tuple(output.numel() * output.element_size() for output in outputs),
        loose=tuple(_key(output) not in kept for output in outputs),
        input_saved=_key(leaf) in kept,
    )
    return result, outputs[-1]


_LASTING, _INPUT = -1, -2


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
