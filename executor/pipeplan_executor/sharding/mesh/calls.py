"""Calls of operations on parts of tensors: views with the lengths of parts, and operators that know their part."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeplan.frontend.operators.record import Call
from pipeplan_executor.sharding.kernels import FORWARDS, anywhere

_ATEN = torch.ops.aten
Operand = Callable[[Tensor], Tensor]
"""Returns the part that stands for a recorded tensor."""


def reshaped(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor in another shape; itself if it has it already, which spares autograd a node."""
    return part if part.shape == shape else part.reshape(shape)


def view(call: Call, number: int, part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a result of a call that only views or copies a tensor, of a part of it.

    ``shape``: that of the part of the result.
    """
    packet, args, whole = call.operation.overloadpacket, call.args, call.given[0]
    if packet in (_ATEN.view, _ATEN._unsafe_view, _ATEN._reshape_alias):
        return reshaped(part, shape)
    if packet is _ATEN.expand:
        return part.expand(shape)
    if packet in (_ATEN.split, _ATEN.split_with_sizes):
        place = _place(call, 2)
        first = sum(made.shape[place] for made in call.made[:number])
        return part.narrow(place, first * part.shape[place] // whole.shape[place], shape[place])
    if packet is _ATEN.slice:
        place = _place(call, 1)
        given = [*args, *(0, 0, None, None, 1)[len(args) :]]
        start, step = given[2], given[4]
        if step == 1:
            length = whole.shape[place]
            first = min(max(start + length if (start or 0) < 0 else start or 0, 0), length)
            return part.narrow(place, first * part.shape[place] // length, shape[place])
    if packet is _ATEN.detach and call.made[number].requires_grad:  # autograd's own
        return part
    made = call.operation(part, *args[1:], **call.kwargs)
    found: Tensor = made[number] if isinstance(made, tuple | list) else made
    return found


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Return the value with every tensor in it replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([mapped(change, each) for each in value])
    return {key: mapped(change, each) for key, each in value.items()} if type(value) is dict else value


def _place(call: Call, at: int) -> int:
    said: int = call.args[at] if len(call.args) > at else call.kwargs.get("dim", 0)
    dimensions: int = call.given[0].dim()
    return said % dimensions


def results(call: Call, operand: Operand, adds: bool = True) -> Sequence[Tensor]:
    """Return the results of an operator on parts. What it writes in place is a new tensor.

    ``adds``: whether this process adds what is added to a product; of parts of a sum one process does.
    """
    operation = call.operation
    known: dict[int, Tensor] = {}

    def part(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = operand(tensor)
        return known[id(tensor)]

    args, kwargs = mapped(part, call.args), mapped(part, call.kwargs)
    if operation in FORWARDS:
        return (anywhere(operation, args, kwargs),)
    packet = operation.overloadpacket
    if packet in (_ATEN.addmm, _ATEN.baddbmm) and not adds:
        args = [_Elsewhere.apply(args[0]), *args[1:]]
    if packet is _ATEN.convolution:
        given, weight, bias, *rest, groups = args
        if groups > 1:  # as many as the part has channels for
            groups = groups * given.shape[1] // call.given[0].shape[1]
        args = [given, weight, bias if adds or bias is None else _Elsewhere.apply(bias), *rest, groups]
    if operation._schema.is_mutable:
        operation, args = _functional(operation, args)
    made = operation(*args, **kwargs)
    return made if isinstance(made, tuple | list) else (made,)


class _Elsewhere(torch.autograd.Function):
    """Zeros in place of what another process adds; the gradient is that of all."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _functional(operation: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return the operation that does not write into its first argument; else itself, and a copy of the argument."""
    name = operation.overloadpacket.__name__
    packet = getattr(_ATEN, name.removesuffix("_"), None) if name.endswith("_") else None
    if packet is not None and operation._overloadname in packet.overloads():
        return getattr(packet, operation._overloadname), args
    return operation, [args[0].clone(), *args[1:]]


def rows(call: Call, operand: Operand, first: int) -> Sequence[Tensor]:
    """Return rows of a table of which this process has those from ``first`` on; others are 0, so a part of a sum."""
    table, numbers = map(operand, call.given)
    place = numbers - first
    own = (place >= 0) & (place < table.shape[0])
    made = _ATEN.embedding(table, torch.where(own, place, 0))
    return (torch.where(own.unsqueeze(-1), made, 0),)
