"""Captured graphs: their operations on parameters, and those that stand for them while weight gradients wait.

::

    weight = self.block_up_weight                  weight = self.block_up_weight
    y = aten.linear.default(x, weight)      ──▶    y = linear(x, weight, queue=self.weight_queue)
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx

from pipeplan.deferred.convolutions import convolve, spread
from pipeplan.deferred.lookups import embedding
from pipeplan.deferred.products import addmm, linear, matmul

_ATEN = torch.ops.aten
OPERATIONS: dict[Callable[..., object], Callable[..., Tensor]] = {
    _ATEN.linear.default: linear,
    _ATEN.matmul.default: matmul,
    _ATEN.mm.default: matmul,
    _ATEN.addmm.default: addmm,
    _ATEN.embedding.default: embedding,
    _ATEN.conv1d.default: convolve,
    _ATEN.conv2d.default: convolve,
    _ATEN.conv3d.default: convolve,
    _ATEN.conv1d.padding: convolve,
    _ATEN.conv2d.padding: convolve,
    _ATEN.conv3d.padding: convolve,
    _ATEN.conv_transpose1d.default: spread,
    _ATEN.conv_transpose2d.input: spread,
    _ATEN.conv_transpose3d.input: spread,
}
"""Operations that change, with the same arguments."""
_WEIGHT = {_ATEN.embedding.default: 0, _ATEN.addmm.default: 2}
"""At which place an operation reads its weight, where that is not 1."""


def changing(graph: fx.Graph) -> list[fx.Node]:
    """Those nodes that multiply by something that the graph's module holds; what else they read does not matter."""
    found = []
    for node in graph.nodes:
        if node.op == "call_function" and node.target in OPERATIONS and not {"alpha", "beta"} & set(node.kwargs):
            place = _WEIGHT.get(node.target, 1)
            weight = node.args[place] if place < len(node.args) else None
            if isinstance(weight, fx.Node) and weight.op == "get_attr":
                found.append(node)
    return found
