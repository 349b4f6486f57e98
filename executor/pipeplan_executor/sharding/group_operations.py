"""Operations on tensors of which each rank has its part of every group along an axis (`Grouped`).

::

    x ──▶ product with [h, 3 h] ──▶ Grouped ──split──▶ queries, keys, values ──view──▶ heads     Shard
          its gradient          ◀── Grouped ◀──cat──── gradients             ◀──view── heads

Operations along other axes, and elementwise ones, treat the numbers of an axis alike, wherever they are: they run on
the local parts. What separates the groups makes shards of each, and in a backward gradients of all groups are put
together again. All other operations get whole tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import gcd, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

from pipeplan_executor.sharding.grouped import Grouped, divides, is_cut
from pipeplan_executor.sharding.operations import COPIES, VIEWS, Traits
from pipeplan_executor.sharding.parts import WHOLE, as_dtensor, local, mapped, placed, spec, tensors
from pipeplan_executor.sharding.tokens import whole_shape

_ATEN = torch.ops.aten
_SAME = {_ATEN.detach.default, _ATEN.alias.default}
_TURNS = {_ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default}
_SPLITS = {_ATEN.split.Tensor, _ATEN.split_with_sizes.default}
_SELECTS = {_ATEN.select.int, _ATEN.unbind.int}
_SLICE, _SLICE_BACK, _SELECT_BACK = _ATEN.slice.Tensor, _ATEN.slice_backward.default, _ATEN.select_backward.default
_ALONG = (*_SELECTS, _SLICE, _SLICE_BACK, _SELECT_BACK, _ATEN.unsqueeze.default, _ATEN.squeeze.dim)
Made: TypeAlias = Any
"""A tensor, or several."""


class GroupOperations:
    """Operations on grouped tensors, or that make such a one; None where they need the whole.

    Parameters
    ----------
    mesh : DeviceMesh
        The tensor-parallel ranks.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._views: dict[tuple[tuple[int, ...], tuple[int, ...], int], Grouped] = {}
        self._slices: dict[tuple[object, ...], Grouped] = {}

    def run(
        self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any], forward: bool
    ) -> Made | None:
        """Return what an operation makes, or None; tensors among the arguments are plain and whole, or `DTensor`s."""
        found = tensors(args, kwargs)
        grouped = [each for each in found if is_grouped(each)]
        if func in VIEWS and len(found) == 1:
            return self._view(args[0], args[1])
        if func is _ATEN.cat.default and found and not forward:
            return self._together(*args)
        if func is _SLICE_BACK and not grouped:
            return self._slice_back(*args)
        if not grouped:
            return None
        if operation.combines or func.overloadpacket in COPIES or func in _SAME:
            return self._elementwise(func, args, kwargs, grouped[0])
        own: Callable[..., Made | None] | None = None
        if func in _SPLITS:
            own = self._divided
        elif func in _TURNS:
            own = self._turned
        elif func in _ALONG:
            own = self._beside
        elif func is _ATEN.mm.default:
            own = self._product
        elif func is _ATEN.addmm.default:
            own = self._sum_and_product
        elif func is _ATEN.sum.dim_IntList:
            own = self._summed
        return None if own is None else own(func, *args, **kwargs)

    def _placed(self, part: Tensor, how: Placement) -> DTensor:
        return placed(part, self._mesh, (how,))

    def _part(self, tensor: Tensor, how: Placement | None) -> Tensor:
        """Return the local part of a tensor, which may be plain and whole."""
        return local(as_dtensor(tensor, self._mesh), WHOLE if how is None else (how,))

    def _elementwise(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], like: DTensor) -> Made | None:
        """Run on the parts of all operands that have the axis; of others on the whole."""
        how, length = _grouping(like)
        place = how.dim - like.dim()  # counted from the last axis, as in broadcasts

        def wanted(tensor: Tensor) -> Placement | None:
            axis = tensor.dim() + place
            return Grouped(axis, how.groups) if axis >= 0 and tensor.shape[axis] == length else None

        if func._schema.is_mutable:
            first = args[0]
            if not isinstance(first, DTensor) or spec(first).placements != (wanted(first),):
                return None
        made = func(
            *mapped(lambda tensor: self._part(tensor, wanted(tensor)), args),
            **mapped(lambda tensor: self._part(tensor, wanted(tensor)), kwargs),
        )
        if func._schema.is_mutable:
            return args[0]
        return mapped(lambda part: self._placed(part, Grouped(part.dim() + place, how.groups)), made)

    def _turned(self, func: Any, tensor: DTensor, *rest: Any) -> DTensor:
        how, _ = _grouping(tensor)
        order = func(torch.empty(tuple(range(2, 2 + tensor.dim())), device="meta"), *rest).shape
        return self._placed(func(local(tensor, (how,)), *rest), Grouped(list(order).index(how.dim + 2), how.groups))

    def _divided(self, func: Any, tensor: DTensor, sizes: Any, dim: int = 0) -> Made | None:
        """Split: along another axis, or into groups, each of one or several."""
        how, length = _grouping(tensor)
        axis, part = dim % tensor.dim(), local(tensor, (how,))
        if axis != how.dim:
            return mapped(lambda each: self._placed(each, how), func(part, sizes, dim))
        every = [min(sizes, length - first) for first in range(0, length, sizes)] if isinstance(sizes, int) else sizes
        ends = [sum(every[:n]) for n in range(len(every) + 1)]
        ranges = [_within(how, length, first, end) for first, end in pairwise(ends)]
        if any(each is None for each in ranges):
            return None
        parts = part.split([each // self._mesh.size() for each in every], axis)
        return [self._placed(each, own) for each, own in zip(parts, ranges, strict=True) if own is not None]

    def _beside(self, func: Any, tensor: DTensor, *rest: Any) -> Made | None:
        """Run an operation along an axis, which is another one; or slice some of the groups."""
        how, length = _grouping(tensor)
        count, part = self._mesh.size(), local(tensor, (how,))
        if func in (_SLICE_BACK, _SELECT_BACK):
            shape, dim, *others = rest
            axis, back = dim % len(shape), int(func is _SELECT_BACK)
            place = how.dim + (back and how.dim >= axis)
            if axis == place:
                return self._slice_back(tensor, *rest) if func is _SLICE_BACK else None
            own = [each // (count if n == place else 1) for n, each in enumerate(shape)]
            return self._placed(func(part, own, dim, *others), Grouped(place, how.groups))
        dim, *others = rest or (0,)
        axis = dim % (tensor.dim() + (func is _ATEN.unsqueeze.default))
        if func is _ATEN.unsqueeze.default:
            return self._placed(func(part, dim), Grouped(how.dim + (axis <= how.dim), how.groups))
        if axis == how.dim:
            return self._slice(tensor, part, how, length, *others) if func is _SLICE else None
        gone = func in _SELECTS or (func is _ATEN.squeeze.dim and tensor.shape[axis] == 1)
        left = Grouped(how.dim - (gone and axis < how.dim), how.groups)
        return mapped(lambda each: self._placed(each, left), func(part, dim, *others))

    def _slice(
        self,
        tensor: DTensor,
        part: Tensor,
        how: Grouped,
        length: int,
        start: Any = None,
        end: Any = None,
        step: int = 1,
    ) -> DTensor | None:
        first, stop, _ = slice(start, end).indices(length)
        own = _within(how, length, first, stop) if step == 1 and first < stop else None
        if own is None:
            return None
        self._slices[tuple(tensor.shape), how.dim, first, stop] = how
        count = self._mesh.size()
        return self._placed(part.narrow(how.dim, first // count, (stop - first) // count), own)

    def _slice_back(
        self, gradient: Any, shape: Sequence[int], dim: int, start: int, end: int, step: int
    ) -> DTensor | None:
        """Return the gradient of all groups from that of those which were sliced, split as these are."""
        axis = dim % len(shape)
        first, stop, _ = slice(start, end).indices(shape[axis])
        how = self._slices.get((tuple(shape), axis, first, stop))
        own = None if how is None or step != 1 else _within(how, shape[axis], first, stop)
        if own is None or how is None or not isinstance(gradient, DTensor) or spec(gradient).placements != (own,):
            return None
        count, part = self._mesh.size(), local(gradient, (own,))
        sizes = [each // (count if n == axis else 1) for n, each in enumerate(shape)]
        return self._placed(_SLICE_BACK(part, sizes, axis, first // count, stop // count, 1), how)

    def _together(self, parts: Sequence[Tensor], dim: int = 0) -> DTensor | None:
        """Return the gradient of all groups from those of each, if some are split along the axis."""
        axis, count = dim % parts[0].dim(), self._mesh.size()
        groups: list[int] = []
        for each in parts:
            how = spec(each).placements[0] if isinstance(each, DTensor) else WHOLE[0]
            length = each.shape[axis]
            groups += how.lengths(length) if type(how) is Grouped and how.dim == axis else [length]
            if is_cut(how) and how.dim != axis:
                return None
        cut = any(isinstance(each, DTensor) and is_cut(spec(each).placements[0]) for each in parts)
        if not cut or len(groups) < 2 or any(each % count for each in groups):
            return None
        own = []
        for each in parts:
            how = spec(each).placements[0] if isinstance(each, DTensor) else WHOLE[0]
            own.append(self._part(each, how if is_cut(how) else Shard(axis)))
        return self._placed(torch.cat(own, axis), Grouped(axis, _lowest(groups)))

    def _view(self, tensor: DTensor, shape: Sequence[int]) -> DTensor | None:
        """Return a view that keeps the axis, divides its indices or its groups; or one back from these."""
        how, count = spec(tensor).placements[0], self._mesh.size()
        if type(how) not in (Shard, Grouped):
            return None
        known, whole = tuple(tensor.shape), whole_shape(shape, tensor.numel())
        if type(how) is Shard:
            own = self._views.get((whole, known, how.dim)) or _merged(known, whole, how.dim)
        else:
            own = _regrouped(known, whole, how)
        if own is None or not divides(own, whole[own.dim], count):
            return None
        if type(how) is Grouped and type(own) is Shard:
            self._views[known, whole, own.dim] = how
        divided = tuple(each // count if n == own.dim else each for n, each in enumerate(whole))
        return self._placed(local(tensor, (how,)).reshape(divided), own)

    def _product(self, func: Any, one: Tensor, other: Tensor) -> DTensor | None:
        """Return a product with groups of columns or rows; or the ranks' parts of a sum over all groups."""
        left, right = _placement(one), _placement(other)
        made = _made_by(left, right)
        return None if made is None else self._placed(func(self._part(one, left), self._part(other, right)), made)

    def _sum_and_product(self, func: Any, bias: Tensor, one: Tensor, other: Tensor, **factors: Any) -> DTensor | None:
        made = _made_by(_placement(one), _placement(other))
        if factors or made is None:
            return None
        if isinstance(made, Partial):
            added = self._part(bias, None)  # by one rank only
            added = added if self._mesh.get_local_rank() == 0 else torch.zeros_like(added)
        else:
            axis = made.dim - 2 + bias.dim()
            there = axis >= 0 and bias.shape[axis] > 1
            added = self._part(bias, Grouped(axis, made.groups) if there else None)
        return self._placed(func(added, self._part(one, _placement(one)), self._part(other, _placement(other))), made)

    def _summed(
        self, func: Any, tensor: DTensor, dims: Sequence[int] | None, keepdim: bool = False, **how_made: Any
    ) -> DTensor | None:
        how, _ = _grouping(tensor)
        gone = {each % tensor.dim() for each in dims} if dims else set(range(tensor.dim()))
        made = func(local(tensor, (how,)), dims, keepdim, **how_made)
        if how.dim in gone:
            return self._placed(made, Partial())
        place = how.dim if keepdim else how.dim - sum(each < how.dim for each in gone)
        return self._placed(made, Grouped(place, how.groups))


def is_grouped(tensor: Tensor) -> bool:
    """Return whether each rank has its part of several groups of a tensor."""
    return isinstance(tensor, DTensor) and type(spec(tensor).placements[0]) is Grouped


def _grouping(tensor: DTensor) -> tuple[Grouped, int]:
    """Return how a tensor is grouped, and the length of the axis."""
    how: Grouped = spec(tensor).placements[0]
    return how, tensor.shape[how.dim]


def _placement(tensor: Tensor) -> Placement:
    return spec(tensor).placements[0] if isinstance(tensor, DTensor) else WHOLE[0]


def _made_by(left: Placement, right: Placement) -> Placement | None:
    """Return the placement of a product of matrices with these; None if no rank has what it needs."""
    if type(left) is Grouped and type(right) is Grouped:
        return Partial() if (left.dim, right.dim, left.groups) == (1, 0, right.groups) else None
    if WHOLE[0] not in (left, right):
        return None
    if type(right) is Grouped:
        return right if right.dim == 1 else None
    return left if type(left) is Grouped and left.dim == 0 else None


def _within(how: Grouped, length: int, first: int, end: int) -> Placement | None:
    """Return the placement of a range of the axis that consists of whole groups; None for other ranges."""
    at, found = 0, []
    for each in how.lengths(length):
        if at < end and first < at + each:
            if at < first or at + each > end:
                return None
            found.append(each)
        at += each
    if not found:
        return None
    return Shard(how.dim) if len(found) == 1 else Grouped(how.dim, _lowest(found))


def _lowest(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(each // gcd(*lengths) for each in lengths)


def _regrouped(known: tuple[int, ...], whole: tuple[int, ...], how: Grouped) -> Placement | None:
    """Return the placement of a view of grouped numbers: of its groups, if each is an index, or grouped as before."""
    length, before = known[how.dim], prod(known[: how.dim])
    place = next((n for n in range(len(whole)) if prod(whole[:n]) == before and whole[n] > 1), None)
    if place is None:
        return None
    if len(set(how.groups)) == 1 and whole[place] == len(how.groups) and len(whole) > place + 1:
        return Shard(place + 1)
    return Grouped(place, how.groups) if whole[place] % length == 0 or length % whole[place] == 0 else None


def _merged(known: tuple[int, ...], whole: tuple[int, ...], dim: int) -> Placement | None:
    """Return the placement of a view in which the outer part of a split axis is merged with axes before it.

    Heads of all samples are one axis in `torch.nn.MultiheadAttention`, and each sample's are a group.
    """
    for first in range(dim):
        outer = prod(known[first:dim])
        place = next((n for n in range(len(whole)) if prod(whole[:n]) == prod(known[:first])), None)
        if place is not None and outer > 1 and whole[place] % outer == 0:
            part = whole[place] // outer
            if 1 < part < known[dim] and known[dim] % part == 0:
                return Grouped(place, (1,) * outer)
    return None
