"""`MeshGradients`: gradients of parameters that processes have parts of a sum of, along some axes of a mesh.

::

    micro-batches   += part   += part   += part         each process adds its own, nothing is sent
    R               sum along one axis after the other, then over the replicas
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.partial_gradients import Gradients


class MeshGradients:
    """The axes along which gradients of one stage's parameters are parts of a sum.

    Parameters
    ----------
    axes : MeshAxes
    summed : mapping of Parameter to tuple of int
        The axes; parameters without any may be left out.
    """

    def __init__(self, axes: MeshAxes, summed: Mapping[nn.Parameter, tuple[int, ...]]) -> None:
        self._axes = axes
        self._summed = {id(parameter): own for parameter, own in summed.items()}

    def sum(self, gradients: Gradients) -> None:
        """Sum those among these gradients, in one collective for each axis."""
        every = list(gradients)
        for axis, group in enumerate(self._axes.groups):
            parts = [own for parameter, own in every if own is not None and axis in self._of(parameter)]
            if parts and self._axes.sizes[axis] > 1:
                flat = torch.cat([part.reshape(-1) for part in parts])
                dist.all_reduce(flat, group=group)
                _put(parts, flat)

    def keep_once(self, gradients: Gradients) -> None:
        """Let sums that were not used count once in the next sum: zero them on all processes but one of an axis."""
        for parameter, own in gradients:
            if own is not None and any(self._axes.places[axis] for axis in self._of(parameter)):
                own.zero_()

    def agree(self, _parameters: Sequence[nn.Parameter], _replicas: dist.ProcessGroup) -> bool:
        """Return whether all replicas know which gradients are parts: the plan says it."""
        return True

    def _of(self, parameter: nn.Parameter) -> tuple[int, ...]:
        return self._summed.get(id(parameter), ())


def _put(parts: list[Tensor], flat: Tensor) -> None:
    for part, total in zip(parts, flat.split([each.numel() for each in parts]), strict=True):
        part.copy_(total.view_as(part))
