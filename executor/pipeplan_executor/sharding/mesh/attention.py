"""Attention on a mesh to keys of which this process has some tokens: they are gathered for it, and again backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.words import PARTIAL, WHOLE
from pipeplan.frontend.operators.record import Call
from pipeplan_executor.sharding.blocks import (
    ROWS,
    Attended,
    Block,
    attend_backward_to,
    attend_to,
    causal_blocks,
)
from pipeplan_executor.sharding.kernels import FORWARDS, Options, arguments_of, options_of
from pipeplan_executor.sharding.mesh.calls import Operand
from pipeplan_executor.sharding.mesh.moves import MeshAxes, along
from pipeplan_executor.sharding.parts import mapped

_AXIS = 1
"""Of the rows in which keys and values are joined, samples, tokens and the rest, that of the tokens."""


def attention(call: Call, operand: Operand, axes: MeshAxes, own: Sequence[int]) -> Sequence[Tensor]:
    """Return the results of attention whose queries, keys and values are split along tokens by the axes ``own``."""
    assert call.operation in FORWARDS, "attention without known parts runs whole"
    args, kwargs = mapped(operand, call.args), mapped(operand, call.kwargs)
    made: Tensor = _ByKeys.apply(*args[:3], options_of(arguments_of(call.operation, args, kwargs)), axes, tuple(own))
    return (made,)


class _ByKeys(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, options: Options, axes: MeshAxes, own: tuple[int, ...]
    ) -> Tensor:
        blocks = _blocks(query, _gathered((key, value), axes, own), options, axes, own)
        made, sums = attend_to(query, blocks, options.scale)
        ctx.save_for_backward(query, key, value, made, sums)
        ctx.options, ctx.axes, ctx.own = options, axes, own
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, made, sums = ctx.saved_tensors
        axes, own, options = ctx.axes, ctx.own, ctx.options
        wholes = _gathered((key, value), axes, own)
        blocks = _blocks(query, wholes, options, axes, own)
        found = Attended(made, sums)
        to_query, *rest = attend_backward_to(gradient, query, wholes, blocks, found, options.scale)
        return to_query, *_scattered(rest, axes, own), None, None, None


def _first(length: int, axes: MeshAxes, own: Sequence[int]) -> int:
    """Return the number of the first token of this process."""
    number = 0
    for axis in own:
        number = number * axes.sizes[axis] + axes.places[axis]
    return number * length


def _blocks(
    query: Tensor, wholes: Sequence[Tensor], options: Options, axes: MeshAxes, own: Sequence[int]
) -> list[Block]:
    """Return the keys that this process's queries attend to: all, or those before them and their own."""
    if not options.causal:
        return [Block(wholes[0], wholes[1], False, options.mask)]
    return causal_blocks(wholes, _first(query.shape[ROWS], axes, own), query.shape[ROWS])


def _gathered(parts: Sequence[Tensor], axes: MeshAxes, own: Sequence[int]) -> list[Tensor]:
    """Return tensors with the tokens of all processes, the innermost axis first, in one collective along each axis."""
    joined = _joined(parts)
    for axis in reversed(own):
        joined = along(joined, axes, axis, _AXIS, WHOLE, ((), (), ()))
    return _divided(joined, parts)


def _scattered(wholes: Sequence[Tensor], axes: MeshAxes, own: Sequence[int]) -> list[Tensor]:
    """Return the sums of all processes' tensors at this process's tokens."""
    joined = _joined(wholes)
    for axis in own:
        joined = along(joined, axes, axis, PARTIAL, _AXIS, ((), (), ()))
    return _divided(joined, wholes)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return samples, tokens, and the numbers of all heads of all tensors."""
    return torch.cat([part.transpose(1, ROWS).flatten(ROWS) for part in parts], ROWS)


def _divided(joined: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors of `_joined`; ``parts``: such with as many heads and features."""
    rows = joined.split([part.shape[1] * part.shape[3] for part in parts], ROWS)
    return [
        row.unflatten(ROWS, (part.shape[1], part.shape[3])).transpose(1, ROWS).contiguous()
        for row, part in zip(rows, parts, strict=True)
    ]
