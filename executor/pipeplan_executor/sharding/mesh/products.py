"""Products with weights on a mesh: operands that a backward makes again, and weight gradients that are delayed.

::

    forward     held part ──▶ moved ──▶ product           kept: the held part, and the part of the weight
    I           weight gathered again ──▶ gradient of what the product reads
    W           held part ──▶ moved again ──▶ gradient of the weight ──▶ scattered

B is both. As in `pipeplan.frontend.split_backward`, these are linear maps, convolutions and tables; operators with
other weights give their gradients in I.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.split_backward.queue import WeightQueue
from pipeplan_executor.sharding.mesh import calls
from pipeplan_executor.sharding.private import run_backward

_ATEN = torch.ops.aten
_MATRICES = _ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm
_FLAGS = 3, 4
"""Arguments of a table: gradients scaled by frequencies, and sparse ones."""


class Part(NamedTuple):
    """The part of an operand that a process has.

    Attributes
    ----------
    value : Tensor
    kept : Tensor
        What is kept of it for the backward.
    make : callable or None
        Makes it of that; None if this is the value.
    parameter : Parameter or None
        The one that it is made of.
    begin : callable or None
        Called in I with what is kept: makes what others need there too.
    """

    value: Tensor
    kept: Tensor
    make: Callable[[Tensor], Tensor] | None = None
    parameter: nn.Parameter | None = None
    begin: Callable[[Tensor], None] | None = None


def is_product(call: Call) -> bool:
    """Return whether a call is a product that runs as `product`, if it reads a parameter."""
    packet = call.operation.overloadpacket
    if packet is _ATEN.embedding:
        return not any(call.args[flag : flag + 1] == (True,) for flag in _FLAGS)
    return packet is _ATEN.convolution or (packet in _MATRICES and not call.kwargs)


def product(
    call: Call, parts: Sequence[Part], first: int | None, adds: bool, queue: WeightQueue | None
) -> Sequence[Tensor]:
    """Return the result of a product of which some operands are parameters.

    Parameters
    ----------
    call : Call
    parts : sequence of Part
        Of the tensors among its arguments, in order.
    first : int or None
        The first row that this process has of a table that is split by rows; None for other products.
    adds : bool
        See `calls.results`.
    queue : WeightQueue or None
        Takes gradients of parameters while it is open.
    """
    parameters = [part.parameter for part in parts if part.parameter is not None]
    waits = queue is not None and all(map(queue.takes, parameters))
    backward = _Backward(
        call,
        first,
        queue if waits else None,
        tuple(part.make for part in parts),
        tuple(part.parameter for part in parts),
        tuple(part.value.shape for part in parts),
        tuple(get_gradient_edge(part.value) if waits and part.parameter is not None else None for part in parts),
        tuple(part.begin for part in parts),
    )
    return (_Product.apply(backward, adds, [part.kept for part in parts], *(part.value for part in parts)),)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backward: "_Backward", adds: bool, kept: Sequence[Tensor], *values: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.how = backward
        of = {id(tensor): value for tensor, value in zip(backward.call.given, values, strict=True)}
        if backward.first is not None:
            return calls.rows(backward.call, lambda tensor: of[id(tensor)], backward.first)[0]
        return calls.results(backward.call, lambda tensor: of[id(tensor)], adds)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.how(gradient, ctx.saved_tensors, ctx.needs_input_grad[3:])


@dataclass(frozen=True)
class _Backward:
    """The backward of one product; ``makes``, ``parameters``, … are those of its operands."""

    call: Call
    first: int | None
    queue: WeightQueue | None
    makes: Sequence[Callable[[Tensor], Tensor] | None]
    parameters: Sequence[nn.Parameter | None]
    shapes: Sequence[torch.Size]
    edges: Sequence[GradientEdge | None]
    begins: Sequence[Callable[[Tensor], None] | None]

    def __call__(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        """Return the gradients of operands; those of parameters wait if there is a queue."""
        if self.queue is None:
            return self._gradients(gradient, kept, wanted)
        one, other, *_ = *(each for each in self.parameters if each is not None), None, None
        for begin, held in zip(self.begins, kept, strict=True):
            if begin is not None:
                begin(held)
        self.queue.put(partial(self._add, one, other, gradient, kept))
        return self._gradients(
            gradient, kept, [each and of is None for each, of in zip(wanted, self.parameters, strict=True)]
        )

    def _add(
        self, _one: nn.Parameter | None, _other: nn.Parameter | None, gradient: Tensor, kept: Sequence[Tensor]
    ) -> None:
        """Add the gradients of the parameters: W."""
        found = self._gradients(gradient, kept, [edge is not None for edge in self.edges])
        pairs = [(edge, own) for edge, own in zip(self.edges, found, strict=True) if edge is not None]
        run_backward([edge for edge, _ in pairs], [own for _, own in pairs if own is not None])

    def _gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        packet = self.call.operation.overloadpacket

        def operand(place: int) -> Tensor:
            make = self.makes[place]
            return kept[place] if make is None else make(kept[place])

        if packet is _ATEN.embedding:
            return (self._of_table(gradient, operand(1)) if wanted[0] else None, None)
        if packet is _ATEN.convolution:
            return self._of_convolution(gradient, operand, wanted)
        left, right = len(kept) - 2, len(kept) - 1
        found: list[Tensor | None] = [
            gradient.sum_to_size(shape) if each else None
            for shape, each in zip(self.shapes[:left], wanted[:left], strict=True)
        ]
        found.append(gradient.matmul(operand(right).mT) if wanted[left] else None)
        found.append(operand(left).mT.matmul(gradient) if wanted[right] else None)
        return found

    def _of_convolution(
        self, gradient: Tensor, operand: Callable[[int], Tensor], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Return the gradients of a convolution; of an operand that none of them needs only the shape is given."""
        *how, groups = self.call.args[3:]
        if groups > 1:  # as many as the part has channels for
            groups = groups * self.shapes[0][1] // self.call.given[0].shape[1]
        given, weight = (
            operand(place) if wanted[1 - place] else gradient.new_empty(self.shapes[place]) for place in (0, 1)
        )
        mask = [*wanted, False][:3]
        made = _ATEN.convolution_backward(gradient, given, weight, [gradient.shape[1]], *how, groups, mask)
        return list(made[: len(wanted)])

    def _of_table(self, gradient: Tensor, numbers: Tensor) -> Tensor:
        rows, padding = self.shapes[0][0], ([*self.call.args[2:], -1])[0]
        if self.first is not None:
            numbers, padding = numbers - self.first, padding - self.first
            own = (numbers >= 0) & (numbers < rows)
            numbers, gradient = torch.where(own, numbers, 0), torch.where(own.unsqueeze(-1), gradient, 0)
        padding = padding if 0 <= padding < rows else -1
        made: Tensor = _ATEN.embedding_dense_backward(gradient, numbers, rows, padding, False)
        return made
