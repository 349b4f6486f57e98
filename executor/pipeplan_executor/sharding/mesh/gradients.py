"""`MeshGradients`: gradients of parameters that processes have parts of a sum of, along some axes of a mesh.

::

    micro-batches   += part   += part   += part         each process adds its own, nothing is sent
    R               sum along the axes of the mesh, then over the replicas
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipeplan.core.strategies import PARTIAL, WHOLE
from pipeplan.costs.sharding.prices import sum_order
from pipeplan_executor.sharding.mesh.moves import MeshAxes, along

Gradients: TypeAlias = Iterable[tuple[nn.Parameter, Tensor | None]]
"""Parameters, and their gradients or this replica's shards of them."""


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
        self._axes_of = {id(parameter): own for parameter, own in summed.items()}

    def sum(self, gradients: Gradients) -> None:
        """Sum those among these gradients, all with the same axes in one collective for each axis and direction."""
        kinds: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter, own in gradients:
            if own is not None and (axes := self._of(parameter)):
                kinds.setdefault(axes, []).append(own)
        for axes, parts in sorted(kinds.items(), key=lambda kind: kind[0]):
            flat = torch.cat([part.reshape(-1) for part in parts])
            summed = self._summed_flat(flat, axes)
            for part, total in zip(parts, summed.split([each.numel() for each in parts]), strict=True):
                part.copy_(total.view_as(part))

    def _summed_flat(self, flat: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Return a sum along axes: scattered along all but one, summed along this, and gathered backward."""
        *scattered, last = sum_order(flat.nbytes, frozenset(axes), self._axes.priced)
        count = prod(self._axes.sizes[axis] for axis in scattered)
        part = torch.nn.functional.pad(flat, (0, -flat.numel() % count))
        for axis in scattered:
            part = along(part, self._axes, axis, PARTIAL, 0, ((),))
        part = along(part, self._axes, last, PARTIAL, WHOLE, ((),))
        for axis in reversed(scattered):
            part = along(part, self._axes, axis, 0, WHOLE, ((),))
        return part[: flat.numel()]

    def keep_once(self, gradients: Gradients) -> None:
        """Let sums that were not used count once in the next sum: zero them on all processes but one of an axis."""
        for parameter, own in gradients:
            if own is not None and any(self._axes.places[axis] for axis in self._of(parameter)):
                own.zero_()

    def _of(self, parameter: nn.Parameter) -> tuple[int, ...]:
        return self._axes_of.get(id(parameter), ())
