"""Causal attention of one slice of a sequence after the other, with the keys and values of the slices before it.

::

    forward     slice 0   slice 1   slice 2        each writes its keys and values behind those of the ones before
    backward    slice 2   slice 1   slice 0        each adds to the gradients of all keys that it saw, and takes its own

Backwards run in reverse, so the sum of a slice's own keys is complete when it takes it. Sums have 32 bits at least. A
forward that is repeated in the backward writes the same keys once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import PlanError
from pipeplan_executor.sharding.blocks import (
    ROWS,
    Attended,
    Block,
    attend_block_backward,
    attend_to,
    causal_blocks,
    empty_sum,
)
from pipeplan_executor.sharding.kernels import Options
from pipeplan_executor.sharding.mesh.tables import SharedTables


@dataclass
class KeptKeys:
    """Keys and values of the micro-batches of a stage, of every attention, until their last backward.

    Attributes
    ----------
    tokens : tuple of int
        Of each slice.
    micro_batch, number : int
        Micro-batch and slice of the action that runs.
    tables : SharedTables
        Masks, positions and rotary tables.
    """

    tokens: tuple[int, ...]
    micro_batch: int = 0
    number: int = 0
    tables: SharedTables = field(default_factory=SharedTables)
    _kept: dict[tuple[Any, int], "_Whole"] = field(default_factory=dict)

    def clear(self) -> None:
        """Drop what an earlier step left."""
        self._kept.clear()

    def of(self, attention: Any, parts: Sequence[Tensor] = ()) -> "_Whole":
        """Return the whole keys and values of an attention; room for them if these are parts of the first slice."""
        key = attention, self.micro_batch
        if key not in self._kept:
            self._kept[key] = _Whole(tuple(_room(part, sum(self.tokens)) for part in parts))
        return self._kept[key]

    def drop(self, attention: Any) -> None:
        """Forget those of the micro-batch."""
        self._kept.pop((attention, self.micro_batch), None)


@dataclass
class _Whole:
    """Keys and values of a sequence, and their gradients as far as they are summed."""

    parts: tuple[Tensor, ...]
    sums: tuple[Tensor, ...] = ()


def _room(part: Tensor, tokens: int) -> Tensor:
    shape = list(part.shape)
    shape[ROWS] = tokens
    return part.new_empty(shape)


@dataclass(frozen=True)
class SlicedAttention:
    """An attention for one slice; ``said``: its layer, for errors."""

    kept: KeptKeys
    attention: Any
    said: str
    options: Options

    def masked(self, mask: Tensor | None) -> "SlicedAttention":
        """Return it with a mask."""
        return replace(self, options=self.options._replace(mask=mask))

    def kept_of(self, query: Tensor, *_: Tensor) -> Sequence[Tensor]:
        """Return what autograd keeps: no keys and values, which are here, nor a tensor that holds them too."""
        is_part = query.untyped_storage().nbytes() > query.nbytes
        return (query.clone(memory_format=torch.contiguous_format) if is_part else query,)

    def to_tokens(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return tensors as they are."""
        return parts

    def forward(self, query: Tensor, *own: Tensor) -> Attended:
        """Return what the slice's queries have of all keys up to its last."""
        kept = self.kept
        first, count = sum(kept.tokens[: kept.number]), kept.tokens[kept.number]
        wholes = kept.of(self.attention, own).parts
        for whole, part in zip(wholes, own, strict=True):
            whole.narrow(ROWS, first, count).copy_(part.detach())
        found = attend_to(query, self._blocks(wholes, first, count), self.options.scale)
        has_backward = any(each.requires_grad for each in (query, *own))
        if kept.number == len(kept.tokens) - 1 and not has_backward:
            kept.drop(self.attention)
        return found

    def backward(self, gradient: Tensor, operands: Sequence[Tensor], made: Tensor, sums: Tensor) -> Sequence[Tensor]:
        """Return gradients of queries, and of keys and values whose sums are complete: the slice's own."""
        kept, (query, *_) = self.kept, operands
        first, count = sum(kept.tokens[: kept.number]), kept.tokens[kept.number]
        whole, of_query, start = kept.of(self.attention), empty_sum(query), 0
        whole.sums = whole.sums or tuple(map(empty_sum, whole.parts))
        for block in self._blocks(whole.parts, first, count):
            own, *rest = attend_block_backward(gradient, query, block, Attended(made, sums), self.options.scale)
            of_query += own
            for total, part in zip(whole.sums, rest, strict=True):
                total.narrow(ROWS, start, part.shape[ROWS]).add_(part)
            start += block.keys.shape[ROWS]
        found = [total.narrow(ROWS, first, count) for total in whole.sums]
        if kept.number == 0:
            kept.drop(self.attention)
        return of_query.to(query.dtype), *(
            each.to(part.dtype, copy=True) for each, part in zip(found, whole.parts, strict=True)
        )

    def _blocks(self, wholes: Sequence[Tensor], first: int, count: int) -> list[Block]:
        mask = self.options.mask
        if mask is None:
            return causal_blocks(wholes, first, count)
        end = first + count
        if mask.shape[-1] > 1:
            later = mask[..., end:]
            hidden = ~later if mask.dtype == torch.bool else later <= torch.finfo(mask.dtype).min
            if not hidden.all():
                raise PlanError(f"{self.said} attends to later tokens, so sequences cannot be cut; plan without slices")
            mask = mask[..., :end]
        keys, values = (whole.narrow(ROWS, 0, end) for whole in wholes)
        return [Block(keys, values, False, mask)]
