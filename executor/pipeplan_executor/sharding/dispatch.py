"""Dispatch of operations on sharded tensors: to torch's DTensor if shards suffice, otherwise on gathered tensors.

::

    every tensor whole              the operation itself, on every tensor-parallel rank
    some are sharded                DTensor's rule for it if it is tested here, or our own (attention on a CPU)
    no such rule, random numbers    gathered, computed alike on every rank; random numbers are those of one process
    partial sums                    forward: summed at once; backward: summed when an operation other than addition
                                    needs them, so that three products of one tensor cost one sum

All of it happens below autograd, where an operation has the meaning that it has for whole tensors. So gradients are
right under every placement.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

from pipeplan_executor.sharding.operations import ATTENTION, Traits, attend, draws, traits, writes
from pipeplan_executor.sharding.parts import WHOLE, is_whole, local, mapped, placed, tensors
from pipeplan_executor.sharding.private import TorchDispatchMode


class ShardDispatch(TorchDispatchMode):
    """Dispatch mode in which operations on `DTensor` run as above, within `during`; plain tensors count as whole ones.

    Parameters
    ----------
    mesh : DeviceMesh
        The tensor-parallel ranks.

    Attributes
    ----------
    gathered : Counter
        Number of times that each operation gathered sharded tensors.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.gathered: Counter[str] = Counter()
        self._mesh = mesh
        self._forward, self._active = False, False

    @contextmanager
    def during(self, *, forward: bool) -> Iterator[None]:
        """Context for a forward (also one that is recomputed within a backward) or a backward."""
        before = self._forward, self._active
        self._forward, self._active = forward, True
        try:
            if before[1]:
                yield
            else:
                with self:
                    yield
        finally:
            self._forward, self._active = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DTensor not in types:
            return func(*args, **kwargs)
        with torch.no_grad():
            made = self._run(func, traits(func), args, kwargs)
            return mapped(self._summed, made) if self._forward else made

    def _run(self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = tensors(args, kwargs)
        # partial sums stay as they are only in operations that keep values, or add two of them
        sums = any(map(_is_partial, found))
        if sums and not (operation.keeps_values or (func in SUMS and all(map(_is_sum, args[:2])))):
            args, kwargs = mapped(self._summed, args), mapped(self._summed, kwargs)
            found, sums = tensors(args, kwargs), False
        if not sums and all(map(is_whole, found)):
            return self._run_whole(func, operation, args, kwargs)
        # from here on some tensors are sharded: our attention, DTensor's rule, or gathering
        drawing = operation.seeded and draws(func, args, kwargs)
        if func in ATTENTION and not drawing and (made := attend(func, args, kwargs)) is not None:
            return made
        if drawing or not operation.by_parts:
            return self._run_gathered(func, operation, args, kwargs)
        try:
            return func(*mapped(self._as_dtensor, args), **mapped(self._as_dtensor, kwargs))
        except RuntimeError as error:
            if not (isinstance(error, NotImplementedError) or "Sharding propagation failed" in str(error)):
                raise
            return self._run_gathered(func, operation, args, kwargs)

    def _as_dtensor(self, tensor: Tensor) -> DTensor:
        return tensor if isinstance(tensor, DTensor) else placed(tensor, self._mesh, WHOLE)

    def _summed(self, tensor: Tensor) -> Tensor:
        """Return the tensor with its partial sums added up, once for all readers."""
        if not (isinstance(tensor, DTensor) and _is_partial(tensor)):
            return tensor
        known = getattr(tensor, _SUM, None)
        if known is None:
            known = placed(local(tensor, WHOLE), self._mesh, WHOLE)
            setattr(tensor, _SUM, known)
        return known

    def _run_gathered(self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.gathered[str(func)] += 1
        return self._run_whole(func, operation, args, kwargs)

    def _run_whole(self, func: Any, operation: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute everything on every rank; a sharded argument that is written into keeps its own shard."""
        if not operation.writing:
            return mapped(self._as_dtensor, func(*mapped(_whole, args), **mapped(_whole, kwargs)))
        # whole copies of the arguments that are written into, uninitialised if the operation only fills them
        written = {id(each): each for each in writes(func, args, kwargs) if isinstance(each, DTensor)}
        wholes = {key: _blank(each) if operation.filling else local(each, WHOLE) for key, each in written.items()}

        def whole(tensor: Tensor) -> Tensor:
            return wholes[id(tensor)] if id(tensor) in wholes else _whole(tensor)

        made = func(*mapped(whole, args), **mapped(whole, kwargs))
        # each rank copies its shard of the written whole back into the argument
        for key, tensor in written.items():
            if not is_whole(tensor):
                part = local(placed(wholes[key], self._mesh, WHOLE), tensor.placements)
                local(tensor, tensor.placements).copy_(part)
        back = {id(wholes[key]): tensor for key, tensor in written.items()}
        return mapped(lambda tensor: back[id(tensor)] if id(tensor) in back else self._as_dtensor(tensor), made)


_SUM = "pipeplan_sum"
SUMS = (torch.ops.aten.add.Tensor,)
"""Sums of partial sums are partial sums."""


def _is_partial(tensor: DTensor) -> bool:
    return any(each.is_partial() for each in tensor.placements)


def _is_sum(value: Any) -> bool:
    return isinstance(value, DTensor) and all(type(p) is Partial and p.reduce_op == "sum" for p in value.placements)


def _whole(tensor: Tensor) -> Tensor:
    return local(tensor, WHOLE) if isinstance(tensor, DTensor) else tensor


def _blank(tensor: DTensor) -> Tensor:
    """Return an uninitialised whole tensor of the same layout."""
    if is_whole(tensor):
        return local(tensor, WHOLE)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
