"""The one door to private parts of ``torch.distributed.pipelining``: a backward in two parts, I and W.

Torch finds the nodes of the graph where the way to the parameters leaves the way to the input, keeps the gradients that
arrive there during I, and goes on from them in W. Nothing is freed in between.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.errors import PlanError

SUPPORTED = ("2.13",)
"""Releases of torch whose split backward this module was tested with."""

if not torch.__version__.startswith(SUPPORTED):
    raise PlanError(
        f"torch {torch.__version__} is installed; plans are run with private parts of its pipelining engine and were "
        f"tested with {', '.join(SUPPORTED)}. Install it: pip install 'torch==2.13.0'"
    )

from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight  # noqa: E402

ParameterGroups = list[dict[str, Any]]
"""What torch keeps from I to W."""


class _Own(torch.autograd.Function):
    """The same values as a contiguous tensor of its own, in the same memory where possible.

    Torch detaches the root of a split backward in place, which it cannot do to a view, and must not do to a tensor
    that the layers saved.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.detach().contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient


def own(x: Tensor) -> Tensor:
    """A tensor that may be the root of a split backward."""
    return _Own.apply(x)


def input_gradient(
    root: Tensor, gradient: Tensor | None, leaf: Tensor, parameters: Sequence[nn.Parameter]
) -> tuple[Tensor | None, ParameterGroups]:
    """I: the gradient of ``leaf``, and what W needs. A root without ``gradient`` is a loss."""
    gradients, groups = stage_backward_input([root], None if gradient is None else [gradient], [leaf], iter(parameters))
    return gradients[0], groups


def weight_gradients(groups: ParameterGroups, parameters: Sequence[nn.Parameter]) -> None:
    """W: add to the gradients of the parameters."""
    stage_backward_weight(iter(parameters), groups)
