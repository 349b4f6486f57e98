"""Sources of a model and its batches."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.frontend.batch import Batch, mapped
from pipeplan.frontend.blank import blank_workload
from pipeplan.frontend.workload import Workload, load_workload
from pipeplan_executor.stages.constructed import Constructed, built

Source: TypeAlias = Workload | str | Callable[[], Workload]
"""A workload, ``'module:function'``, or a function that returns a workload."""


def build(source: Source) -> Workload:
    """Return the workload; its module is on the meta device unless the source is a workload itself.

    Some models cannot be built there, since a constructor reads values, or keeps a tensor that is neither parameter
    nor buffer. They are built for real, and emptied.
    """
    if isinstance(source, Workload):
        return source
    called = partial(_called, source)
    return blank_workload(called, partial(built, called))


def _called(source: str | Callable[[], Workload]) -> Workload:
    if not isinstance(source, str) and not callable(source):
        raise InputError(
            f"the model is built by 'module:function' or by a function that returns a Workload, not by {shown(source)}"
        )
    return load_workload(source) if isinstance(source, str) else source()


def constructed_by(source: Source) -> Constructed | None:
    """Return the values that the model's constructors give; None for a workload whose module exists already."""
    return None if isinstance(source, Workload) else Constructed(lambda: _called(source).module)


def draw(
    workload: Workload, samples: int, seed: int, dtype: torch.dtype | None = None, step: int = 0
) -> tuple[Batch, Batch]:
    """Draw inputs and targets, the same for a seed and step in every process; floating-point tensors are converted."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    with torch.device("cpu"):
        inputs, targets = workload.draw(samples, generator)
    return converted(inputs, dtype), converted(targets, dtype)


def converted(batch: Batch, dtype: torch.dtype | None, device: torch.device | None = None) -> Batch:
    """Return the batch in another floating-point format or on another device; integers keep their format."""

    def change(tensor: Tensor) -> Tensor:
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=device, dtype=wanted)

    return mapped(batch, change)
