"""All uses of names of torch that have an underscore on their way, except DTensor's (`parts`).

Torch 2.13 documents what is here; where it is imported from may change.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "run_backward"]


def run_backward(roots: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    """``torch.autograd.backward(roots, gradients)`` for gradients that are known to fit.

    It is what that function calls once it has compared shapes and types, which takes a third of the backward of a tiny
    stage.
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
