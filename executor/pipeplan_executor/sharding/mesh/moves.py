"""Redistributions on a mesh: collectives along its axes, one after the other, in a forward and in its backward."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pipeplan.core.cluster import Link
from pipeplan.core.errors import PlanError
from pipeplan.core.grouped_axis import group_ranges
from pipeplan.core.strategies import PARTIAL, WHOLE, Placements
from pipeplan.costs.sharding.layer_redistributions import Redistribution
from pipeplan.costs.sharding.redistributions import path
from pipeplan.costs.sharding.shapes import Mesh

if TYPE_CHECKING:
    from pipeplan_executor.sharding.mesh.kept_keys import KeptKeys

_SENT = torch.ops._c10d_functional
Groups = tuple[int, ...]
"""Relative lengths of the groups of a dimension, each of which is split by itself; none if it is split as a whole."""


LINK = Link(10**9)
"""Between neighbours along axes of which nothing is known."""


class TokenCut(NamedTuple):
    """One of the slices of a sequence, which a process runs one after the other as if each were on a mesh's last axis.

    That axis divides tokens before all others do. Nothing is sent along it: a whole tensor is narrowed to the slice's
    tokens, and parts of sums of gradients add up by themselves.

    Attributes
    ----------
    tokens : tuple of int
        Of each slice.
    number : int
    """

    tokens: tuple[int, ...]
    number: int

    @property
    def first(self) -> int:
        """The slice's first token."""
        return sum(self.tokens[: self.number])

    def length(self, whole: int) -> int:
        """Return the slice's tokens, of all."""
        if whole != sum(self.tokens):
            raise PlanError(
                f"the plan cuts sequences of {sum(self.tokens)} tokens into slices, and a layer divides an axis of "
                f"{whole} along them; plan without slices"
            )
        return self.tokens[self.number]

    def moved(self, part: Tensor, source: int, target: int) -> Tensor:
        """Return a part in another placement along the axis of the slices."""
        if source == WHOLE and target >= 0:
            return part.narrow(target, self.first, self.length(part.shape[target]))
        if source >= 0 and target == WHOLE:  # of gradients: the other slices add theirs
            before, behind = self.first, sum(self.tokens[self.number + 1 :])
            return torch.nn.functional.pad(part, (*[0] * (2 * (part.dim() - source - 1)), before, behind))
        if (source, target) == (PARTIAL, WHOLE):
            return part
        raise PlanError(f"tokens along dimension {source} are needed along {target}; plan without slices")


class MeshAxes:
    """The axes of a mesh: devices along each, this process's place among them, and their process groups.

    Parameters
    ----------
    mesh : DeviceMesh or None
        None for a single process.
    links : sequence of Link, optional
        Between neighbours along each axis, as they were priced: they decide by which collectives placements are
        changed. By default all are alike.
    sharing : sequence of int, optional
        Devices along each axis that were priced as sending over one card at once; by default 1.

    Attributes
    ----------
    priced : Mesh
    """

    def __init__(self, mesh: DeviceMesh | None, links: Sequence[Link] = (), sharing: Sequence[int] = ()) -> None:
        self.sizes: tuple[int, ...] = () if mesh is None else tuple(mesh.shape)
        self.priced = Mesh(self.sizes, tuple(links) or (LINK,) * len(self.sizes), tuple(sharing))
        every = range(len(self.sizes))
        self.places: tuple[int, ...] = () if mesh is None else tuple(mesh.get_local_rank(axis) for axis in every)
        self.groups = () if mesh is None else tuple(mesh.get_group(axis) for axis in every)
        self.base: MeshAxes = self  # those along which something is sent: all but that of slices
        self.cut: TokenCut | None = None
        self.kept: KeptKeys | None = None
        self.said = ""

    def sliced(self, cut: TokenCut, kept: "KeptKeys", said: str) -> "MeshAxes":
        """Return these axes for one slice of the layer ``said``: their last axis is that of slices (`TokenCut`)."""
        axes = copy(self)
        axes.cut, axes.kept, axes.said = cut, kept, said
        axes.sizes, axes.places = (*self.sizes, len(cut.tokens)), (*self.places, cut.number)
        links = (*self.priced.links, LINK)
        axes.priced = Mesh(axes.sizes, links, (*self.priced.sharing, 1) if self.priced.sharing else ())
        return axes

    def lengths(self, lengths: Sequence[int], placements: Placements) -> tuple[int, ...]:
        """Return the lengths of the part that this process has of a tensor's dimensions, or of factors of them."""
        return tuple(self.length(length, placements, dimension) for dimension, length in enumerate(lengths))

    def length(self, length: int, placements: Placements, dimension: int) -> int:
        """Return the length of this process's part of a dimension."""
        parts = self.parts(placements, dimension)
        if self.cut is None or placements[-1] != dimension:
            return length // parts
        return self.cut.length(length) // (parts // self.sizes[-1])

    def parts(self, placements: Placements, dimension: int) -> int:
        """Return into how many parts placements split a dimension."""
        return prod(n for n, placement in zip(self.sizes, placements, strict=True) if placement == dimension)

    def share(self, placements: Placements) -> int:
        """Return into how many parts placements split a tensor."""
        return prod(n for n, placement in zip(self.sizes, placements, strict=True) if placement >= 0)


@dataclass(frozen=True)
class Shape:
    """The dimensions of a whole tensor.

    Attributes
    ----------
    lengths : tuple of int
    groups : tuple of Groups
    parts : tuple of int
        Into which each dimension may be divided (see `pipeplan.costs.sharding.signatures.parts_of`).
    """

    lengths: tuple[int, ...]
    groups: tuple[Groups, ...]
    parts: tuple[int, ...]


def moved(part: Tensor, axes: MeshAxes, source: Placements, target: Placements, shape: Shape) -> Tensor:
    """Return this process's part of a tensor in other placements; the same object if it has it already.

    Raises
    ------
    ValueError
        If the tensor cannot get these placements.
    """
    if source == target:
        return part
    if axes.cut is not None:
        return _moved_slice(part, axes, axes.cut, source, target, shape)
    size = prod(shape.lengths) * part.element_size()
    steps = path(source, target, size, axes.priced, shape.parts)
    if steps is None:
        raise ValueError(f"a tensor of {shape.lengths} in the placements {source} cannot get the placements {target}")
    for placements in steps:
        (axis,) = (k for k, (one, other) in enumerate(zip(source, placements, strict=True)) if one != other)
        part = along(part, axes, axis, source[axis], placements[axis], shape.groups)
        source = placements
    return part


def _moved_slice(
    part: Tensor, axes: MeshAxes, cut: TokenCut, source: Placements, target: Placements, shape: Shape
) -> Tensor:
    """Return this process's part in other placements, of a slice: it is cut out first, and put back last."""
    (*before, last), (*after, wanted) = source, target
    if last != wanted >= 0:
        part = cut.moved(part, last, wanted)
    token = max(last, wanted)
    if token >= 0:
        own = [cut.length(n) if k == token else n for k, n in enumerate(shape.lengths)]
        parts = [gcd(n, own[k]) if k == token else n for k, n in enumerate(shape.parts)]
        shape = replace(shape, lengths=tuple(own), parts=tuple(parts))
    part = moved(part, axes.base, tuple(before), tuple(after), shape)
    return cut.moved(part, last, wanted) if wanted < 0 and last != wanted else part


def along(part: Tensor, axes: MeshAxes, axis: int, before: int, after: int, groups: Sequence[Groups]) -> Tensor:
    """Return the part after one collective along an axis, or after none where parts of a whole are dropped.

    As a part of a sum the first process has the whole, the others zeros.
    """
    count, name = axes.sizes[axis], axes.groups[axis].group_name
    if count == 1:
        return part
    if before == WHOLE and after == PARTIAL:
        return torch.zeros_like(part) if axes.places[axis] else part
    if before == WHOLE:
        return divided(part, after, count, groups[after])[axes.places[axis]].contiguous()
    if before == PARTIAL and after == WHOLE:
        return reduced(part, axes, axis)
    if before == PARTIAL:
        rows = torch.stack(divided(part, after, count, groups[after]))
        return _wait(_SENT.reduce_scatter_tensor(rows.flatten(0, 1), "sum", count, name)).reshape(rows.shape[1:])
    if after == WHOLE:
        rows = _wait(_SENT.all_gather_into_tensor(part.contiguous().unsqueeze(0), count, name))
        return joined(rows.unbind(), before, groups[before])
    rows = torch.stack(divided(part, after, count, groups[after]))
    rows = _wait(_SENT.all_to_all_single(rows.contiguous(), [1] * count, [1] * count, name))
    return joined(rows.unbind(), before, groups[before])


def reduced(part: Tensor, axes: MeshAxes, axis: int, how: str = "sum") -> Tensor:
    """Return the sum of the parts that processes along an axis have, or the largest number of each place (``max``)."""
    return _wait(_SENT.all_reduce(part.contiguous(), how, axes.groups[axis].group_name))


def exchanged(parts: Sequence[Tensor], axes: MeshAxes, axis: int, split: int, joined: int) -> list[Tensor]:
    """Return tensors that are split along one dimension, and were along another: all in one all-to-all.

    ``split``, ``joined``: the dimensions that the axis splits behind and before.
    """
    count, name = axes.sizes[axis], axes.groups[axis].group_name
    shapes = [(*part.shape[:split], part.shape[split] // count, *part.shape[split + 1 :]) for part in parts]
    sent = torch.cat([torch.stack([each.reshape(-1) for each in part.chunk(count, split)]) for part in parts], 1)
    rows = _wait(_SENT.all_to_all_single(sent, [1] * count, [1] * count, name))
    return [
        torch.cat([row.reshape(shape) for row in own.unbind()], joined)
        for own, shape in zip(rows.split([prod(shape) for shape in shapes], 1), shapes, strict=True)
    ]


def divided(tensor: Tensor, dimension: int, count: int, groups: Groups = ()) -> list[Tensor]:
    """Return the parts of a dimension; of each of its groups where it has some."""
    if not groups:
        return list(tensor.chunk(count, dimension))
    found = []
    for number in range(count):
        ranges = group_ranges(tensor.shape[dimension], groups, count, number)
        assert ranges is not None, "groups are divided evenly"
        found.append(torch.cat([tensor.narrow(dimension, first, end - first) for first, end in ranges], dimension))
    return found


def joined(parts: Sequence[Tensor], dimension: int, groups: Groups = ()) -> Tensor:
    """Return the whole of a dimension: the inverse of `divided`."""
    if not groups:
        return torch.cat(list(parts), dimension)
    length = parts[0].shape[dimension] // sum(groups)
    rows = [part.split([length * each for each in groups], dimension) for part in parts]
    return torch.cat([row[k] for k in range(len(groups)) for row in rows], dimension)


def _wait(tensor: Tensor) -> Tensor:
    made: Tensor = _SENT.wait_tensor(tensor)
    return made


class Move:
    """A redistribution of tensors of one shape, and that of their gradients on the way back.

    Parameters
    ----------
    how : Redistribution
    shape : Shape
    axes : MeshAxes
    """

    def __init__(self, how: Redistribution, shape: Shape, axes: MeshAxes) -> None:
        self.how, self._shape, self._axes = how, shape, axes

    def forward(self, part: Tensor) -> Tensor:
        """Return the part in the new placements."""
        return moved(part, self._axes, self.how.source, self.how.target, self._shape)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient as it is needed."""
        return moved(gradient, self._axes, self.how.returned, self.how.wanted, self._shape)


class SummedGradient:
    """This process's part of a tensor's gradient, as it is summed up so far.

    Autograd keeps it from forward to backward, so it does not refer to the tensor.
    """

    def __init__(self) -> None:
        self.gradient: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        """Add to the sum of the gradient."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient


class HeldTensor:
    """A tensor on a mesh between the operator that makes it and those that read it.

    Part and gradient may have unlike placements, so unlike shapes, which autograd does not allow a tensor and its
    gradient. What it sees between maker and readers is a number, whose gradient is nothing::

        maker ──▶ number ──┬──▶ reader        forward: the part, moved for the reader
                           └──▶ reader        backward: each adds its gradient to the sum; the number's comes last, and
                                              then the maker gets the sum

    Parameters
    ----------
    part : Tensor
        As it is made.
    move : Move
        From there to the placements in which it is held; of the gradient from that of the sum.

    Attributes
    ----------
    part : Tensor
        As it is held.
    """

    def __init__(self, part: Tensor, move: Move) -> None:
        self.part, self._sum = move.forward(part.detach()), SummedGradient()
        has_gradient = part.requires_grad and torch.is_grad_enabled()
        self._number: Tensor | None = _Making.apply(part, self._sum, move) if has_gradient else None

    def read(self, move: Move, copy: Tensor | None = None) -> Tensor:
        """Return the part in the placements of a reader, moved from a copy if there is one."""
        part = self.part if copy is None else copy
        if self._number is None or not torch.is_grad_enabled():
            return move.forward(part)
        made: Tensor = _Reading.apply(self._number, part, self._sum, move)
        return made


class _Making(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, total: SummedGradient, move: Move) -> Tensor:
        ctx.total, ctx.move = total, move
        return part.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None, None]:
        gradient, ctx.total.gradient = ctx.total.gradient, None
        return None if gradient is None else ctx.move.backward(gradient), None, None


class _Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: Tensor, part: Tensor, total: SummedGradient, move: Move) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.total, ctx.move, ctx.nothing = total, move, number.detach()
        made = move.forward(part)
        return made.view_as(made) if made is part else made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor, None, None, None]:
        if gradient is not None:
            ctx.total.add(ctx.move.backward(gradient))
        return ctx.nothing, None, None, None
