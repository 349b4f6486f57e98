"""Sources of a model and its batches."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, mapped
from pipeplan.frontend.capture.private import on_meta, pytree
from pipeplan.frontend.profile.ties import named_tensors
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
    try:
        with torch.device("meta"):
            workload = _called(source)
        if not _keeps_constants(workload.module):
            return workload
    except Exception:  # if it has another reason than the meta device, the same error comes again
        pass
    workload = built(partial(_called, source))
    return replace(workload, module=on_meta(workload.module))


def _called(source: str | Callable[[], Workload]) -> Workload:
    return load_workload(source) if isinstance(source, str) else source()


def _keeps_constants(module: nn.Module) -> bool:
    """Return whether submodules keep tensors on the meta device that are neither parameters nor buffers."""
    known = {id(tensor) for _, tensor in named_tensors(module)}
    values = (value for part in module.modules() for name, value in vars(part).items() if name not in _REGISTERED)
    leaves = (leaf for value in values for leaf in pytree.tree_leaves(value))
    return any(isinstance(leaf, Tensor) and leaf.is_meta and id(leaf) not in known for leaf in leaves)


_REGISTERED = ("_parameters", "_buffers", "_modules")


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
