"""Imports from private modules of torch.

Torch 2.13 documents these names; their modules may change.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.nn.utils.stateless import _reparametrize_module

__all__ = ["outer_saving", "replaced_parameters", "run_backward"]


def replaced_parameters(module: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Context in which a module has these tensors as parameters, as within `torch.func.functional_call`."""
    replaced: AbstractContextManager[None] = _reparametrize_module(module, dict(tensors))
    return replaced


def outer_saving() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """Return the functions by which autograd keeps tensors at present, and gets them back: those of a checkpoint."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks or (_same, _same)


def _same(tensor: Tensor) -> Tensor:
    return tensor


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
