"""Tensors between layers on a mesh: the part that each process has, and what a plan may ask of them."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import WHOLE, LayerStrategies, Placements
from pipeplan_executor.sharding.sequence import stream_of


def mesh_part(tensor: Tensor, placements: Placements, sizes: Sequence[int]) -> Tensor:
    """Return a tensor on the meta device like the part that one process has of one that passes between layers."""
    shape = list(tensor.shape)
    for axis, count in _counts(tensor, placements, sizes).items():
        shape[axis] //= count
    return torch.empty(shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)


def _counts(tensor: Tensor, placements: Placements, sizes: Sequence[int]) -> dict[int, int]:
    """Return into how many parts placements split the axes of a tensor.

    Placements count the axes that are longer than 1, and that of the samples.
    """
    axes = [n for n, length in enumerate(tensor.shape) if length > 1 or n == 0]
    found: dict[int, int] = {}
    for placement, count in zip(placements, sizes, strict=False):
        if placement != WHOLE:
            found[axes[placement]] = found.get(axes[placement], 1) * count
    return found


def check_mesh(plan: Plan, names: Sequence[str], flow: Sequence[Sequence[Tensor]]) -> None:
    """Refuse what cannot run on a mesh of several axes.

    Raises
    ------
    PlanError
        With the layer and the reason.
    """
    if not plan.strategies:
        return
    strategies = dict(plan.strategies)
    for name, after in pairwise(names):
        if name in strategies and after in strategies and strategies[name].output != strategies[after].input:
            raise PlanError(f"the plan leaves the output of {name} in other placements than {after} reads it in")
    ends = strategies.get(names[0], LayerStrategies()).input, strategies.get(names[-1], LayerStrategies()).output
    if any(placement != WHOLE for end in ends for placement in end):
        raise PlanError("the plan splits the batch or the model's output over a mesh; both are whole on every process")
    sizes = {name: stage.mesh for stage in plan.stages for name in stage.layers}
    for name, tensors in zip(names, flow[1:], strict=True):
        if name not in strategies or not any(placement != WHOLE for placement in strategies[name].output):
            continue
        place, shapes = stream_of(tensors), [tuple(tensor.shape) for tensor in tensors]
        if place is None:
            raise PlanError(
                f"the plan splits the output of {name}, which takes one tensor, and beside it only tensors without a "
                f"gradient; it returns {' and '.join(map(str, shapes))}; solve again"
            )
        shape = shapes[place]
        for axis, count in _counts(tensors[place], strategies[name].output, sizes[name]).items():
            if shape[axis] % count:
                raise PlanError(
                    f"the plan splits the output of {name}, {shape}, into {count} parts along axis {axis}, which "
                    f"{count} does not divide; choose lengths that it divides, or solve again"
                )
