"""Dispatch of operations on tensors of a team: by torch's DTensor where parts will do, else with whole tensors.

::

    every tensor whole              the operation itself, on every member
    some are cut                    DTensor's rule for it where we trust that, or ours (attention on a CPU)
    no such rule, random numbers    gathered, computed on every member alike; random numbers are those of one process
    partial sums                    forward: summed at once; backward: when something else than their sum needs them,
                                    so that three products of one tensor cost one sum

All is done below autograd, where an operation's meaning is that for whole tensors, so gradients are right wherever the
parts lie.
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


class Placing(TorchDispatchMode):
    """Within `during` operations on `DTensor` run as above, and plain tensors count as whole ones.

    Parameters
    ----------
    mesh : DeviceMesh
        The members.

    Attributes
    ----------
    gathered : Counter
        How often which operation had cut tensors and ran with whole ones.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.gathered: Counter[str] = Counter()
        self._mesh = mesh
        self._forward, self._active = False, False

    @contextmanager
    def during(self, *, forward: bool) -> Iterator[None]:
        """A forward, maybe one that is run again within a backward; or a backward."""
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

    def _run(self, func: Any, its: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = tensors(args, kwargs)
        sums = any(map(_is_partial, found))
        if sums and not (its.aside or (func in SUMS and all(map(_is_sum, args[:2])))):
            args, kwargs = mapped(self._summed, args), mapped(self._summed, kwargs)
            found, sums = tensors(args, kwargs), False
        if not sums and all(map(is_whole, found)):
            return self._wholly(func, its, args, kwargs)
        drawing = its.seeded and draws(func, args, kwargs)
        if func in ATTENTION and not drawing and (made := attend(func, args, kwargs)) is not None:
            return made
        if drawing or not its.by_parts:
            return self._gathering(func, its, args, kwargs)
        try:
            return func(*mapped(self._on_team, args), **mapped(self._on_team, kwargs))
        except RuntimeError as error:
            if not (isinstance(error, NotImplementedError) or "Sharding propagation failed" in str(error)):
                raise
            return self._gathering(func, its, args, kwargs)

    def _on_team(self, tensor: Tensor) -> DTensor:
        return tensor if isinstance(tensor, DTensor) else placed(tensor, self._mesh, WHOLE)

    def _summed(self, tensor: Tensor) -> Tensor:
        """Partial sums added up, once for all that read them."""
        if not (isinstance(tensor, DTensor) and _is_partial(tensor)):
            return tensor
        known = getattr(tensor, _SUM, None)
        if known is None:
            known = placed(local(tensor, WHOLE), self._mesh, WHOLE)
            setattr(tensor, _SUM, known)
        return known

    def _gathering(self, func: Any, its: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.gathered[str(func)] += 1
        return self._wholly(func, its, args, kwargs)

    def _wholly(self, func: Any, its: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Every member computes everything; what is written into keeps its own part."""
        if not its.writing:
            return mapped(self._on_team, func(*mapped(_whole, args), **mapped(_whole, kwargs)))
        written = {id(each): each for each in writes(func, args, kwargs) if isinstance(each, DTensor)}
        wholes = {key: _blank(each) if its.filling else local(each, WHOLE) for key, each in written.items()}

        def whole(tensor: Tensor) -> Tensor:
            return wholes[id(tensor)] if id(tensor) in wholes else _whole(tensor)

        made = func(*mapped(whole, args), **mapped(whole, kwargs))
        for key, tensor in written.items():
            if not is_whole(tensor):
                part = local(placed(wholes[key], self._mesh, WHOLE), tensor.placements)
                local(tensor, tensor.placements).copy_(part)
        back = {id(wholes[key]): tensor for key, tensor in written.items()}
        return mapped(lambda tensor: back[id(tensor)] if id(tensor) in back else self._on_team(tensor), made)


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
    """A whole one like it, that is going to be filled."""
    if is_whole(tensor):
        return local(tensor, WHOLE)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
