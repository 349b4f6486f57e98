"""`Moves`: what an operator was moved for it, which the backward moves again in place of keeping it.

::

    forward     held part ──▶ moved ──▶ operator      autograd would keep what was moved
    backward    held part ──▶ moved again             it keeps the held part, and how it was moved
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pipeplan.frontend.capture.private import memory_of

Move = Callable[[Tensor], Tensor]


class _Again(NamedTuple):
    """A tensor that is a view of what a move makes."""

    held: Tensor
    move: Move
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Moves:
    """The tensors that were moved for one call of an operator."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Tensor, Move]] = {}

    def note(self, held: Tensor, made: Tensor, again: Move) -> Tensor:
        """Note that ``again`` makes of the held part what was moved; return this."""
        if memory_of(made) != memory_of(held):
            self._made[memory_of(made)] = held.detach(), again
        return made

    def repeated(self) -> AbstractContextManager[None]:
        """Context in which autograd keeps held parts in place of what was moved."""
        context: AbstractContextManager[None] = saved_tensors_hooks(self._pack, _unpack)
        return context

    def _pack(self, tensor: Tensor) -> Tensor | _Again:
        found = self._made.get(memory_of(tensor))
        if found is None:
            return tensor
        return _Again(*found, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _unpack(kept: Tensor | _Again) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    return kept.move(kept.held).as_strided(kept.size, kept.stride, kept.offset)
