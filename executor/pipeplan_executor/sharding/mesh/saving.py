"""`Moves`: what was moved for an operator, which the backward moves again in place of keeping it.

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


class Repeated:
    """A tensor that a backward makes again, once for all that autograd would have kept of it.

    Parameters
    ----------
    make : callable
    first : callable, optional
        Called where the backward is known to make it.
    """

    def __init__(self, make: Callable[[], Tensor], first: Callable[[], None] | None = None) -> None:
        self._make, self._first = make, first
        self._made: Tensor | None = None
        self._uses = self._left = 0

    def keep(self) -> None:
        """Note one more use in the backward."""
        if not self._uses and self._first is not None:
            self._first()
        self._uses += 1

    def again(self) -> Tensor:
        """Return it for one of these uses; behind the last one it is dropped."""
        if self._made is None:
            self._made, self._left = self._make(), self._uses
        made = self._made
        self._left -= 1
        if not self._left:
            self._made = None
        return made


class _Again(NamedTuple):
    """A tensor that is a view of one that is made again."""

    base: Repeated
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Moves:
    """The tensors that were moved for one call of an operator."""

    def __init__(self) -> None:
        self._made: dict[Any, Repeated] = {}

    def note(self, held: Tensor, made: Tensor, again: Repeated) -> Tensor:
        """Note that ``again`` makes of the held part what was moved; return this."""
        if memory_of(made) != memory_of(held):
            self._made[memory_of(made)] = again
        return made

    def repeated(self) -> AbstractContextManager[None]:
        """Context in which autograd keeps held parts in place of what was moved."""
        context: AbstractContextManager[None] = saved_tensors_hooks(self._pack, _unpack)
        return context

    def _pack(self, tensor: Tensor) -> Tensor | _Again:
        found = self._made.get(memory_of(tensor))
        if found is None:
            return tensor
        found.keep()
        return _Again(found, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _unpack(kept: Tensor | _Again) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    return kept.base.again().as_strided(kept.size, kept.stride, kept.offset)
