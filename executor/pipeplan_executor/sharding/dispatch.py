"""Dispatch of operations on sharded tensors: to torch's DTensor if shards suffice, otherwise on gathered tensors.

::

    every tensor whole              the operation itself, on every tensor-parallel rank
    some are sharded                DTensor's rule for it if it is tested here, or our own (attention on a CPU, cross
                                    entropy, convolutions, pooling)
    no such rule, random numbers    gathered, computed alike on every rank; random numbers are those of one process
    partial sums                    forward: summed at once; backward: summed when an operation other than addition
                                    needs them, so that three products of one tensor cost one sum, also beside what is
                                    whole: the first rank adds it

In layers whose inputs or outputs are split along tokens (`pipeplan_executor.sharding.tokens`)::

    products, attention             a tensor that is split along tokens is gathered first, once for those that follow
    other operations                run on the tokens of each rank
    partial sums                    reduced to tokens; in a backward to the shard of an operand of the same shape, and
                                    whole for products

Products with a whole weight, and attention, run on the tokens of each rank where the plan says so
(`pipeplan_executor.sharding.products`, `context`).

Autograd saves what operations get, so shards: a gather is repeated in the backward where a weight gradient needs it.

All of it happens below autograd, where an operation has the meaning that it has for whole tensors. So gradients are
right under every placement.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from pipeplan_executor.sharding.blocks import HEADS
from pipeplan_executor.sharding.classes import by_classes
from pipeplan_executor.sharding.context import (
    attend_backward,
    attend_forward,
    fits,
    mark_attention,
    marked_attention,
)
from pipeplan_executor.sharding.group_operations import GroupOperations, is_grouped
from pipeplan_executor.sharding.grouped import divides, is_cut
from pipeplan_executor.sharding.kernels import FORWARDS
from pipeplan_executor.sharding.moves import LastMoved
from pipeplan_executor.sharding.operations import (
    ATTENTION,
    DROPOUT,
    INDEPENDENT_AXES,
    TABLE_GRADIENT,
    TABLE_LOOKUP,
    VIEWS,
    Traits,
    attend,
    draws,
    drop,
    independent_axes,
    traits,
    writes,
)
from pipeplan_executor.sharding.parts import (
    WHOLE,
    are_addends,
    as_dtensor,
    blank_of,
    is_partial,
    is_sum,
    is_whole,
    local,
    mapped,
    placed,
    spec,
    tensors,
    whole_of,
)
from pipeplan_executor.sharding.private import TorchDispatchMode
from pipeplan_executor.sharding.products import aligned, features_wanted, is_weight, on_tokens, pass_marks
from pipeplan_executor.sharding.rules import Rules
from pipeplan_executor.sharding.sequence import Stream
from pipeplan_executor.sharding.tokens import TOKENS, is_flat, is_split, reduced, reshaped
from pipeplan_executor.sharding.windows import by_windows


class ShardDispatch(TorchDispatchMode):
    """Dispatch mode in which operations on `DTensor` run as above, within `during`; plain tensors count as whole ones.

    Parameters
    ----------
    mesh : DeviceMesh
        The tensor-parallel ranks.
    streams : collection of Stream
        Lengths of the tensors that are split along tokens; none if no layer splits them.

    Attributes
    ----------
    gathered : Counter
        Number of times that each operation gathered sharded tensors that it could not compute with.
    stream : Stream or None
        Lengths in the layer whose forward or backward runs, if its input or output is split along tokens.
    """

    def __init__(self, mesh: DeviceMesh, streams: Collection[Stream] = ()) -> None:
        super().__init__()
        self.gathered: Counter[str] = Counter()
        self.stream: Stream | None = None
        self._mesh, self._streams, self._rules = mesh, tuple(dict.fromkeys(streams)), Rules()
        self._forward, self._active = False, False
        self._attention: Mapping[int, str] = {}
        self._attended = 0
        self._last, self._groups = LastMoved(), GroupOperations(mesh)
        self._tables: dict[int, Placement] = {}
        self._images: set[torch.Size] = set()  # their channels are no heads

    @contextmanager
    def during(
        self, *, forward: bool, stream: Stream | None = None, attention: Mapping[int, str] | None = None
    ) -> Iterator[None]:
        """Context for a forward (also one that is recomputed within a backward) or a backward.

        ``attention``: how those of a layer run that do so on parts of the tokens, by number.
        """
        before = self._forward, self._active, self.stream
        self._forward, self._active, self.stream = forward, True, stream
        self._attention, self._attended = attention or {}, 0
        self._last.clear()
        try:
            if before[1]:
                yield
            else:
                with self:
                    yield
        finally:
            self._forward, self._active, self.stream = before
            self._last.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DTensor not in types:
            return func(*args, **kwargs)
        with torch.no_grad():
            made = self._run(func, traits(func), args, kwargs)
            pass_marks(func, args, made)
            if not self._forward:
                return made
            again = func in VIEWS and was_summed(args[0])
            return mapped(partial(self._made, again), made)

    def _made(self, summed: bool, tensor: Tensor) -> Tensor:
        """Return what an operation of a forward made, settled; backwards recognise it.

        ``summed``: whether it is a view of what was (see `was_summed`).
        """
        settled = self._settled(tensor)
        if self._streams and isinstance(settled, DTensor):
            setattr(settled, _MADE, True)
            if summed or settled is not tensor:
                setattr(settled, _SUMMED, True)
        return settled

    def _run(self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._streams and (made := self._run_on_tokens(func, args, kwargs)) is not None:
            return made
        found, given = tensors(args, kwargs), args
        # partial sums stay as they are only in operations that keep values, or add two of them
        sums = any(map(is_partial, found))
        if sums and func not in SUMS:
            args, kwargs = mapped(self._complete, args), mapped(self._complete, kwargs)
            found = tensors(args, kwargs)
            sums = any(map(is_partial, found))
        elif sums and self.stream is None and not self._forward and are_addends(*args[:2]):
            return self._added(func, args, kwargs)
        if sums and not (operation.keeps_values or (func in SUMS and all(map(is_sum, args[:2])))):
            alone = operation.multiplies and independent_axes(func) < len(INDEPENDENT_AXES)
            summed = self._summed if alone else partial(self._settled, beside=found)
            args, kwargs = mapped(summed, args), mapped(summed, kwargs)
            found, sums = tensors(args, kwargs), False
        views = self._streams and not sums and func in VIEWS
        if views and (made := reshaped(args[0], args[1], self._streams)) is not None:
            return made
        if not sums and func in (TABLE_LOOKUP, TABLE_GRADIENT):
            args = self._rows(func, args)
            found = tensors(args, kwargs)
        if not sums and operation.multiplies and self._streams:
            args = self._with_features(func, args)
            gathered = partial(self._gathered, func, _heads(func, found))
            args, kwargs = mapped(gathered, args), mapped(gathered, kwargs)
            found = tensors(args, kwargs)
        if operation.combines and not sums and (self._forward or self._streams):
            args = mapped(self._as_dtensor, args)
            args = mapped(partial(self._alike, tensors(args, kwargs)), args)
            found = tensors(args, kwargs)
        if not sums:
            args = aligned(func, args, given, self._forward)
            found = tensors(args, kwargs)
        if not sums and all(map(is_whole, found)):
            return self._run_whole(func, operation, args, kwargs)
        if not sums and (made := self._groups.run(func, operation, args, kwargs, self._forward)) is not None:
            return made
        if any(map(is_grouped, found)):
            args, kwargs = mapped(self._ungrouped, args), mapped(self._ungrouped, kwargs)
            run = self._run_whole if operation.multiplies else self._run_gathered
            return run(func, operation, args, kwargs)
        # from here on some tensors are sharded: our attention, DTensor's rule, or gathering
        drawing = operation.seeded and draws(func, args, kwargs)
        if func is DROPOUT and not sums:
            return drop(self._mesh, *args, **kwargs)
        if func in ATTENTION and not drawing and (made := attend(func, args, kwargs)) is not None:
            return made
        if (made := by_classes(func, args, kwargs)) is not None:
            return made
        if (made := by_windows(self._mesh, func, args, kwargs)) is not None:
            self._images |= {each.shape for each in tensors((made,), {})}
            return made
        if drawing or not operation.by_parts:
            return self._run_gathered(func, operation, args, kwargs)
        args, kwargs = mapped(self._as_dtensor, args), mapped(self._as_dtensor, kwargs)
        try:
            return func(*args, **kwargs) if operation.writing else self._rules.run(func, args, kwargs)
        except RuntimeError as error:
            if not (isinstance(error, NotImplementedError) or "Sharding propagation failed" in str(error)):
                raise
            return self._run_gathered(func, operation, args, kwargs)

    def _run_on_tokens(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run what the plan has on parts of the tokens; None for all else."""
        by = marked_attention(func, args)
        if by is not None:
            return attend_backward(func, by, args, kwargs)
        if func in FORWARDS:
            by = self._attention.get(self._attended) if self._forward else None
            self._attended += 1
            if by is None:
                return None
            if not draws(func, args, kwargs) and fits(args, by):
                mark_attention(args[0], by)
                return attend_forward(func, by, args, kwargs)
            self.gathered[f"{func} by {by}"] += 1
            return None
        return None if kwargs else on_tokens(func, args, self._streams, self._last, self._forward)

    def _with_features(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of a product whose split weight needs parts of the features, from parts of tokens."""
        wanted = features_wanted(func, args)
        if wanted is None or not is_flat(args[wanted[0]], self._streams):
            return args
        place, how = wanted
        features = args[place].shape[1 - spec(args[place]).placements[0].dim]
        if not divides(how, features, self._mesh.size()):
            return args
        return [*args[:place], self._last.to_features(args[place], how), *args[place + 1 :]]

    def _as_dtensor(self, tensor: Tensor) -> DTensor:
        return as_dtensor(tensor, self._mesh)

    def _added(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a sum of partial sums, or of one and what is whole: that is marked, for `_complete`."""
        args = [getattr(each, _SUM, each) if hasattr(each, _MIXED) else each for each in args]
        if all(map(is_whole, args[:2])):
            return self._run_whole(func, traits(func), args, kwargs)
        mixed = any(is_whole(each) or hasattr(each, _MIXED) for each in args[:2])
        made = self._rules.run(func, mapped(self._added_once, args), kwargs)
        if mixed:
            setattr(made, _MIXED, True)
        return made

    def _added_once(self, tensor: Tensor) -> Tensor:
        """Return what is whole as a partial sum: the first rank has it, the others zeros."""
        if not isinstance(tensor, DTensor) or not is_whole(tensor):
            return tensor
        part = local(tensor, WHOLE)
        part = part if self._mesh.get_local_rank() == 0 else torch.zeros_like(part)
        return placed(part, self._mesh, (Partial(),))

    def _complete(self, tensor: Tensor) -> Tensor:
        """Return the whole of partial sums that something whole was added to: who reads these otherwise needs it."""
        return self._summed(tensor) if hasattr(tensor, _MIXED) else tensor

    def _summed(self, tensor: Tensor) -> Tensor:
        """Return the tensor with its partial sums added up, once for all readers."""
        if not (isinstance(tensor, DTensor) and is_partial(tensor)):
            return tensor
        known = getattr(tensor, _SUM, None)
        if known is None:
            known = placed(local(tensor, WHOLE), self._mesh, WHOLE)
            setattr(tensor, _SUM, known)
        return known

    def _settled(self, tensor: Tensor, beside: Sequence[DTensor] = ()) -> Tensor:
        """Return the tensor with its partial sums added up: at the tokens of each rank if its layer splits them.

        ``beside``: operands, of which one of the same shape decides how the sums are split.
        """
        if not (isinstance(tensor, DTensor) and is_partial(tensor)):
            return tensor
        if getattr(tensor, _SUM, None) is None:
            like = [each for each in beside if each.shape == tensor.shape and is_cut(each.placements[0])]
            if like:
                made = placed(local(tensor, like[0].placements), self._mesh, like[0].placements)
            else:
                made = None if self.stream is None else reduced(tensor, self.stream)
            if made is not None:
                setattr(tensor, _SUM, made)
        return self._summed(tensor)

    def _gathered(self, func: Any, heads: DTensor | None, tensor: Tensor) -> Tensor:
        """Return an operand of a product, whole if it is split along tokens; beside one that has ``heads`` by these."""
        if not isinstance(tensor, DTensor) or is_whole(tensor):
            return tensor
        axes = independent_axes(func)
        split = is_flat(tensor, self._streams) or (axes and is_split(tensor, self._streams, axes))
        if split and heads is not None and (moved := self._last.to_heads(tensor, heads)) is not None:
            return moved
        return self._last.gather(tensor) if split else tensor

    def _ungrouped(self, tensor: Tensor) -> Tensor:
        """Return the whole of a tensor of which ranks have parts of groups, gathered once for all readers."""
        if not is_grouped(tensor):
            return tensor
        known = getattr(tensor, _GATHERED, None)
        if known is None:
            known = placed(local(tensor, WHOLE), self._mesh, WHOLE)
            setattr(tensor, _GATHERED, known)
        return known

    def _alike(self, operands: Sequence[DTensor], tensor: Tensor) -> Tensor:
        """Return an operand of an elementwise operation under placements that all of its shape have.

        Where they differ it is whole, or has the tokens or heads of each rank if another one has. A smaller one is
        gathered if the larger ones are whole, unless it is a weight. In a backward it is as what the forward made,
        which is where that ran.
        """
        if not isinstance(tensor, DTensor):
            return tensor
        larger = [each for each in operands if self._forward and each.numel() > tensor.numel()]
        if larger and is_cut(spec(tensor).placements[0]) and not is_weight(tensor) and all(map(is_whole, larger)):
            return placed(local(tensor, WHOLE), self._mesh, WHOLE)
        alike = {spec(each).placements for each in operands if each.shape == tensor.shape}
        if len(alike) == 1:
            return tensor
        if not self._forward:
            own = [each for each in operands if each.shape == tensor.shape and hasattr(each, _MADE)]
            wanted = spec(own[0]).placements if own else spec(tensor).placements
        elif self.stream is not None and tensor.shape[:2] == self.stream and TOKENS in alike:
            wanted = TOKENS
        else:
            scores = tensor.dim() > HEADS + 2 and tensor.shape not in self._images
            wanted = ON_HEADS if scores and alike == {WHOLE, ON_HEADS} else WHOLE
        return placed(local(tensor, wanted), self._mesh, wanted)

    def _rows(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of a table's gradient with rows as the table needs them, noting how tables are split.

        A table which is whole, or split by its rows, needs those of all tokens, and all of their features. One that is
        split by features needs its features of all tokens.
        """
        rows = args[0]
        if not isinstance(rows, DTensor):
            return args
        how = spec(rows).placements[0]
        if func is TABLE_LOOKUP:
            self._tables[len(rows)] = how
            return args
        table = self._tables.get(args[2])
        features = (Shard(rows.dim() - 1),)
        if table in (Shard(0), WHOLE[0]) and not (is_whole(rows) or is_grouped(rows)):
            rows = self._last.gather(rows)
        elif table == Shard(1) and type(how) is Shard and (how,) != features:
            rows = placed(local(rows, features), self._mesh, features)
        return [rows, *args[1:]]

    def _run_gathered(self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.gathered[str(func)] += 1
        return self._run_whole(func, operation, args, kwargs)

    def _run_whole(self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute everything on every rank; a sharded argument that is written into keeps its own shard."""
        if not operation.writing:
            return mapped(self._as_dtensor, func(*mapped(whole_of, args), **mapped(whole_of, kwargs)))
        # whole copies of the arguments that are written into, uninitialised if the operation only fills them
        written = {id(each): each for each in writes(func, args, kwargs) if isinstance(each, DTensor)}
        wholes = {key: blank_of(each) if operation.filling else local(each, WHOLE) for key, each in written.items()}

        def whole(tensor: Tensor) -> Tensor:
            return wholes[id(tensor)] if id(tensor) in wholes else whole_of(tensor)

        made = func(*mapped(whole, args), **mapped(whole, kwargs))
        # each rank copies its shard of the written whole back into the argument
        for key, tensor in written.items():
            if not is_whole(tensor):
                part = local(placed(wholes[key], self._mesh, WHOLE), tensor.placements)
                local(tensor, tensor.placements).copy_(part)
        back = {id(wholes[key]): tensor for key, tensor in written.items()}
        return mapped(lambda tensor: back[id(tensor)] if id(tensor) in back else self._as_dtensor(tensor), made)


_SUM, _MIXED, _GATHERED = "pipeplan_sum", "pipeplan_mixed", "pipeplan_gathered"
_MADE, _SUMMED = "pipeplan_made", "pipeplan_summed"
ON_HEADS = (Shard(HEADS),)
"""Placement of what attention reads, or of its scores, that is split by heads."""
SUMS = (torch.ops.aten.add.Tensor,)
"""Sums of partial sums are partial sums."""


def was_summed(tensor: Tensor) -> bool:
    """Return whether a tensor of a forward is a sum of all ranks' parts, or a view of one."""
    return hasattr(tensor, _SUMMED)


def _heads(func: Any, found: Sequence[DTensor]) -> DTensor | None:
    """Return an operand of attention, or of a product of stacks of matrices, that is split by heads, if any is."""
    axis = HEADS if func in ATTENTION else 0 if independent_axes(func) == 1 else None
    rows = ((each, spec(each).placements[0]) for each in found)
    return next((each for each, how in rows if isinstance(how, Shard | _StridedShard) and how.dim == axis), None)
