"""`saving`: what was moved for an operator is moved again in the backward, and not kept.

::

    forward     held part ──▶ moved ──▶ operator      autograd would keep what was moved
    backward    held part ──▶ moved again             it keeps the held part, and how it was moved

Where a layer is recomputed, the held part is what its second forward makes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pipeplan.core.strategies import Placements
from pipeplan.frontend.capture.private import memory_of
from pipeplan_executor.sharding.private import outer_saving


class Repeated:
    """A tensor that a backward makes again, once for all that autograd would have kept of it.

    Parameters
    ----------
    make : callable
        Makes it of the held part.
    first : callable, optional
        Called where the backward is known to make it.
    begin : callable, optional
        Called with the held part in the input gradient, where that makes something for it.
    """

    def __init__(
        self,
        make: Callable[[Tensor], Tensor],
        first: Callable[[], None] | None = None,
        begin: Callable[[Tensor], None] | None = None,
    ) -> None:
        self._make, self._first, self.begin = make, first, begin
        self._made: Tensor | None = None
        self._uses = self._left = 0

    def keep(self) -> None:
        """Note one more use in the backward."""
        if not self._uses and self._first is not None:
            self._first()
        self._uses += 1

    def prepare(self, held: Tensor) -> None:
        """Make it for all of these uses."""
        if self._made is None:
            self._made, self._left = self._make(held), self._uses

    def again(self, held: Tensor) -> Tensor:
        """Return it for one of these uses; behind the last one it is dropped."""
        self.prepare(held)
        made = self._made
        assert made is not None
        self._left -= 1
        if not self._left:
            self._made = None
        return made


class Base(NamedTuple):
    """A tensor or parameter as an operator needs it.

    Attributes
    ----------
    part : Tensor
    placements : Placements
    held : Tensor
        As it is held, without a gradient.
    again : Repeated
        Makes the one of the other.
    """

    part: Tensor
    placements: Placements
    held: Tensor
    again: Repeated

    @property
    def is_moved(self) -> bool:
        """Whether it is another tensor than the one that is held."""
        return bool(memory_of(self.part) != memory_of(self.held))


class _Again(NamedTuple):
    """A tensor that is a view of one that is made again; ``held``: what is kept in its place."""

    base: Repeated
    held: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@contextmanager
def saving(bases: Iterable[Base]) -> Iterator[None]:
    """Context in which autograd keeps held parts in place of what was moved."""
    moved = {memory_of(base.part): base for base in bases if base.is_moved}
    outer_pack, outer_unpack = outer_saving()

    def pack(tensor: Tensor) -> Any:
        base = moved.get(memory_of(tensor))
        if base is None:
            return outer_pack(tensor)
        base.again.keep()
        view = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return _Again(base.again, outer_pack(base.held), *view)

    try:
        with saved_tensors_hooks(pack, partial(_unpack, outer_unpack)):
            yield
    finally:
        moved.clear()  # autograd keeps the function


def _unpack(outer: Callable[[Any], Tensor], kept: Any) -> Tensor:
    if not isinstance(kept, _Again):
        return outer(kept)
    return kept.base.again(outer(kept.held)).as_strided(kept.size, kept.stride, kept.offset)
