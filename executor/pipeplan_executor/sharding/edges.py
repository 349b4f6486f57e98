"""Edges of layers that share their tokens, and of their parameters: what enters and leaves, there and back.

::

    forward     plain or split x ──▶ [ layer ] ──▶ plain and whole, or split along tokens
    backward    gradient, as x   ◀── [       ] ◀── gradient, as the output

A layer's backward begins where its output's gradient enters, so the dispatch is told there whose tokens are split.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

from pipeplan_executor.sharding.dispatch import ShardDispatch, was_summed
from pipeplan_executor.sharding.partial_gradients import PartialGradients
from pipeplan_executor.sharding.parts import WHOLE, local, placed
from pipeplan_executor.sharding.sequence import Stream
from pipeplan_executor.sharding.tokens import TOKENS

Placements: TypeAlias = tuple[Placement, ...]


class Entering(torch.autograd.Function):
    """Input of a layer as a DTensor; its gradient is split along tokens, or whole, as the input is."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mesh: DeviceMesh, is_split: bool, dispatch: ShardDispatch) -> DTensor:
        ctx.set_materialize_grads(False)
        ctx.placements, ctx.dispatch = TOKENS if is_split else WHOLE, dispatch
        ctx.is_plain = type(tensor) is not DTensor
        part = tensor if ctx.is_plain else local(tensor, ctx.placements)
        return placed(part.detach(), mesh, ctx.placements)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor | None) -> tuple[Tensor | None, ...]:
        ctx.dispatch.stream = None
        if gradient is None:
            return None, None, None, None
        part = local(gradient, ctx.placements)
        return part if ctx.is_plain else placed(part, gradient.device_mesh, ctx.placements), None, None, None


class Leaving(torch.autograd.Function):
    """Output of a layer: split along tokens, or along classes for the loss, or plain and whole."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor, wanted: Placements, dispatch: ShardDispatch, stream: Stream) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.mesh, ctx.placements = tensor.device_mesh, tensor.placements
        ctx.dispatch, ctx.stream = dispatch, stream
        ctx.needs_all = wanted == WHOLE and was_summed(tensor)
        part = local(tensor, wanted)
        if wanted == WHOLE:
            return torch.ops.aten._unsafe_view(part, part.shape)  # autograd forbids in-place writes into views here
        if part.untyped_storage().nbytes() > part.nbytes:
            part = part.clone()  # otherwise it keeps the whole
        return placed(part, tensor.device_mesh, wanted)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.dispatch.stream = ctx.stream
        if gradient is None:
            return None, None, None, None
        if not isinstance(gradient, DTensor):
            gradient = placed(gradient, ctx.mesh, WHOLE)
        # whole values inside have whole gradients; all of those of sums is needed by every rank, and here it is
        wanted = ctx.placements if type(ctx.placements[0]) is Shard and not ctx.needs_all else WHOLE
        return placed(local(gradient, wanted), ctx.mesh, wanted), None, None, None


class WholeParameter(torch.autograd.Function):
    """A whole parameter as a DTensor.

    ``lasting``: the parameter that the stage keeps; another one if this one is gathered for a pass.
    """

    @staticmethod
    def forward(
        ctx: Any, parameter: nn.Parameter, lasting: nn.Parameter, mesh: DeviceMesh, partial: PartialGradients
    ) -> DTensor:
        ctx.set_materialize_grads(False)
        ctx.parameter, ctx.partial = lasting, partial
        return placed(parameter.detach(), mesh, WHOLE)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor | None) -> tuple[Tensor | None, ...]:
        own = None if gradient is None else own_gradient(ctx.parameter, gradient, ctx.partial)  # delayed: none yet
        return own, None, None, None


def own_gradient(parameter: nn.Parameter, gradient: DTensor, partial: PartialGradients) -> Tensor:
    """Return what this rank adds to the gradient of a whole parameter.

    If the first gradient was a partial sum, the ranks' gradients are summed after the last backward: a whole one is
    then added by the first rank only. If the first one was whole, a partial sum is summed at once.
    """
    found = gradient.placements[0].is_partial()
    if not partial.is_partial(parameter, found):
        return local(gradient, WHOLE)
    if type(gradient.placements[0]) is Partial and gradient.placements[0].reduce_op == "sum":
        return gradient.to_local()
    whole = local(gradient, WHOLE)
    return whole if partial.first else torch.zeros_like(whole)
