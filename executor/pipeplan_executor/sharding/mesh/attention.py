"""Attention on a mesh whose axes split its tokens (`pipeplan.costs.sharding.attention`).

::

    forward     tokens ═▶ heads ─▶ keys of other tokens gathered, or going round ─▶ attention ─▶ heads ═▶ tokens
    backward    operands, output and its gradient the same again ─▶ gradients: keys' summed and scattered, ═▶ tokens

═▶ are all-to-alls along axes by heads. Autograd keeps parts of the tokens. Keys and values go in one collective, and so
do all operands that change to heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.operators import TOKEN
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, BY_RING, PARTIAL, UNSPLIT, WHOLE, AxisStrategy, Strategy
from pipeplan.costs.sharding.attention import axes_by
from pipeplan.frontend.operators.record import Call
from pipeplan_executor.sharding.blocks import (
    HEADS,
    ROWS,
    Attended,
    Block,
    attend_backward_to,
    attend_to,
)
from pipeplan_executor.sharding.kernels import FORWARDS, Options, arguments_of, options_of
from pipeplan_executor.sharding.mesh.calls import mapped
from pipeplan_executor.sharding.mesh.kept_keys import SlicedAttention
from pipeplan_executor.sharding.mesh.moves import MeshAxes, along, exchanged
from pipeplan_executor.sharding.ring import Ring, RingAttention, ring_blocks

_AXIS = 1
"""Of the rows in which keys and values are joined, samples, tokens and the rest, that of the tokens."""
_OPERANDS = 3
"""Queries, keys and values; masks come behind them."""


def attention(
    call: Call, operand: Callable[[Tensor, Strategy], Tensor], axes: MeshAxes, strategy: Strategy
) -> Sequence[Tensor]:
    """Return the results of attention whose queries, keys and values are split along tokens.

    ``operand``: returns the part that stands for a recorded tensor under a strategy.
    """
    assert call.operation in FORWARDS, "attention without known parts runs whole"
    of_mask = tuple(AxisStrategy(UNSPLIT) if entry.by == BY_HEADS else entry for entry in strategy)
    operands = {id(tensor) for tensor in call.given[:_OPERANDS]}

    def part(tensor: Tensor) -> Tensor:
        return operand(tensor, strategy if id(tensor) in operands else of_mask)

    args, kwargs = mapped(part, call.args), mapped(part, call.kwargs)
    options = options_of(arguments_of(call.operation, args, kwargs))
    method: Method = _Method(axes, strategy, options._replace(mask=None))
    if axes.kept is not None:
        method = SlicedAttention(axes.kept, id(call), axes.said, options._replace(mask=None))
    made: Tensor = _Attention.apply(*args[:_OPERANDS], options.mask, method)
    return (made,)


class _Attention(torch.autograd.Function):
    """Attention by a method without its mask, which autograd keeps like the operands: as it is held."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, method: "Method") -> Tensor:
        found = method.masked(mask).forward(query, key, value)
        (made,) = method.to_tokens((found.made,))
        ctx.save_for_backward(*method.kept_of(query, key, value), made, found.sums, mask)
        ctx.method = method
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *operands, made, sums, mask = ctx.saved_tensors
        return *ctx.method.masked(mask).backward(gradient, operands, made, sums), None, None


@dataclass(frozen=True)
class _Method:
    """How attention gets keys along the axes that split its tokens."""

    axes: MeshAxes
    strategy: Strategy
    options: Options

    def masked(self, mask: Tensor | None) -> "_Method":
        """Return it with a mask."""
        return replace(self, options=self.options._replace(mask=mask))

    def kept_of(self, *operands: Tensor) -> Sequence[Tensor]:
        """Return what autograd keeps of queries, keys and values."""
        return operands

    def forward(self, *operands: Tensor) -> Attended:
        """Return what this process's queries have of all keys, those of its heads."""
        query, *keys = self._to_heads(operands)
        wholes, options = self._gathered(keys), self._options
        if (ring := self._ring(query, options)) is not None:
            return ring.forward(query, *wholes)
        return attend_to(query, self._blocks(query, wholes, options), options.scale)

    def backward(self, gradient: Tensor, operands: Sequence[Tensor], made: Tensor, sums: Tensor) -> Sequence[Tensor]:
        """Return gradients of queries, keys and values, at this process's tokens."""
        query, *keys = self._to_heads(operands)
        gradient, made = self._to_heads((gradient, made))
        wholes, options, found = self._gathered(keys), self._options, Attended(made, sums)
        if (ring := self._ring(query, options)) is not None:
            key, value = wholes
            to_query, *rest = ring.backward(gradient, query, key, value, found)
        else:
            blocks = self._blocks(query, wholes, options)
            to_query, *rest = attend_backward_to(gradient, query, wholes, blocks, found, options.scale)
        return self.to_tokens((to_query.to(query.dtype), *self._scattered(rest)))

    def to_tokens(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return tensors of which this process has some heads at its own tokens."""
        for axis in axes_by(self.strategy, BY_HEADS):
            parts = exchanged(parts, self.axes, axis, ROWS, HEADS)
        return parts

    def _to_heads(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        for axis in reversed(axes_by(self.strategy, BY_HEADS)):
            parts = exchanged(parts, self.axes, axis, HEADS, ROWS)
        return parts

    @property
    def _options(self) -> Options:
        """The options with the mask for this process's heads, of all tokens that it has of these."""
        mask: Tensor | None = self.options.mask
        for axis in reversed(axes_by(self.strategy, BY_HEADS)):
            place = HEADS - 4
            if mask is not None and mask.dim() >= -place and mask.shape[place] > 1:
                mask = mask.chunk(self.axes.sizes[axis], place)[self.axes.places[axis]]
        return self.options._replace(mask=mask)

    def _first(self, queries: int) -> int:
        """Return the place of this process's first query among the keys that are gathered."""
        number = 0
        for axis in axes_by(self.strategy, BY_KEYS):
            number = number * self.axes.sizes[axis] + self.axes.places[axis]
        return number * queries

    def _ring(self, query: Tensor, options: Options) -> RingAttention | None:
        for axis in axes_by(self.strategy, BY_RING):
            ring = Ring(self.axes.groups[axis], self.axes.sizes[axis], self.axes.places[axis])
            count = query.shape[ROWS]
            return RingAttention(ring, ring_blocks(options, ring.rank, count, self._first(count)), options.scale)
        return None

    def _blocks(self, query: Tensor, wholes: Sequence[Tensor], options: Options) -> list[Block]:
        """Return what this process's queries see of all keys, which it has."""
        count = query.shape[ROWS]
        return ring_blocks(options, 0, count, self._first(count))(0, wholes[0], wholes[1])

    def _gathered(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return tensors with the tokens of all processes, the innermost axis first, in one collective along each."""
        if not (own := axes_by(self.strategy, BY_KEYS)):
            return parts
        joined = _joined(parts)
        for axis in reversed(own):
            joined = along(joined, self.axes, axis, _AXIS, WHOLE, ((), (), ()))
        return _divided(joined, parts)

    def _scattered(self, wholes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the sums of all processes' tensors at this process's tokens."""
        if not (own := axes_by(self.strategy, BY_KEYS)):
            return wholes
        joined = _joined(wholes)
        for axis in own:
            joined = along(joined, self.axes, axis, PARTIAL, _AXIS, ((), (), ()))
        return _divided(joined, wholes)


Method = _Method | SlicedAttention


def splits_tokens(strategy: Strategy) -> bool:
    """Return whether any axis splits tokens."""
    return any(entry.loop == TOKEN for entry in strategy)


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
