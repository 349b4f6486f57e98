"""Gradients clipped by their global norm: over all stages, with everything that several ranks have alike counted once.

::

    rank 0   stage 0, replica 0   [ sums ]        ── square, add up ──╮
    rank 1   stage 0, replica 1   the same                            ├─ norm ─▶ every gradient × min(1, limit / norm)
    rank 2   stage 1, copy of a weight of stage 0 · [ rest ] ─────────╯
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan_executor.optim.reduction import Flat

TINY = 1e-6
"""Added to the norm, as `torch.nn.utils.clip_grad_norm_` does."""


def total_norm(parts: Sequence[Flat], device: torch.device) -> Tensor:
    """The 2-norm of all gradients of the model, the same in every process; all take part, behind their reductions."""
    square = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        if part.counts:
            square += torch.linalg.vector_norm(part.sums, dtype=_accumulated(part.sums.dtype)).double().square()
    dist.all_reduce(square)
    return square.sqrt()


def clip(parts: Sequence[Flat], limit: float, norm: Tensor) -> None:
    """Scale the gradients so that their norm is ``limit`` at most."""
    factor = (limit / (norm + TINY)).clamp(max=1.0)
    for part in parts:
        part.sums.mul_(factor.to(part.sums.dtype))


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Squares of 16-bit numbers leave their range."""
    return torch.float32 if dtype.itemsize < 4 else dtype
