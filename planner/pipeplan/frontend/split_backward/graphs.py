"""Captured graphs: their operations on parameters, and the replacements with delayed weight gradients.

::

    weight = self.block_up_weight                  weight = self.block_up_weight
    y = aten.linear.default(x, weight)      ──▶    y = linear(x, weight, queue=self.weight_queue)
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pipeplan.frontend.split_backward.convolutions import convolve, convolve_transposed
from pipeplan.frontend.split_backward.products import addmm, embedding, linear, matmul

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
    _ATEN.conv_transpose1d.default: convolve_transposed,
    _ATEN.conv_transpose2d.input: convolve_transposed,
    _ATEN.conv_transpose3d.input: convolve_transposed,
}
"""Replaced operations, with the same arguments."""
_WEIGHT = {_ATEN.embedding.default: 0, _ATEN.addmm.default: 2}
"""Position of the weight among an operation's arguments, if it is not 1."""


class Replacement(NamedTuple):
    """A node, the function that it calls instead, and the arguments."""

    node: fx.Node
    target: Callable[..., Tensor]
    arguments: tuple[Any, ...]


def replacements(part: fx.GraphModule) -> list[Replacement]:
    """One exchange for each node that multiplies by a parameter of the graph's module."""
    found = []
    for node in part.graph.nodes:
        if node.op == "call_function" and node.target in OPERATIONS and not {"alpha", "beta"} & set(node.kwargs):
            place = _WEIGHT.get(node.target, 1)
            weight = node.args[place] if place < len(node.args) else None
            if _is_held(weight):
                found.append(Replacement(node, OPERATIONS[node.target], node.args))
            elif node.target in _MATRIX and (turned := _transposed_parameter(weight, part)) is not None:
                *bias, x, _ = node.args
                found.append(Replacement(node, linear, (x, turned, *bias)))
    return found


_MATRIX = (_ATEN.matmul.default, _ATEN.mm.default, _ATEN.addmm.default)
_TURNS = (_ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default, _ATEN.numpy_T.default)


def _is_held(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "get_attr"


def _transposed_parameter(node: Any, part: fx.GraphModule) -> fx.Node | None:
    """The module's own matrix, if the node is its transpose: the product is then a linear map."""
    if isinstance(node, fx.Node) and node.target in _TURNS and _is_held(node.args[0]):
        matrix = attrgetter(node.args[0].target)(part)
        if matrix.ndim == 2 and node.target(matrix, *node.args[1:]).stride() == matrix.stride()[::-1]:
            return node.args[0]
    return None
