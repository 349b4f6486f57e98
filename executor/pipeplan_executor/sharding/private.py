"""Imports from private modules of torch, except DTensor's (`parts`).

Torch 2.13 documents these names; their modules may change.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "run_backward"]


def run_backward(roots: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    """Run ``torch.autograd.backward(roots, gradients)`` without checking shapes and types.

    The check takes a third of the backward of a tiny stage.
    """
    _engine_run_backward(
        tuple(roots),
        tuple(gradients),
        False,  # keep no graph
        False,  # make none
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )
