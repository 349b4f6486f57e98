"""Layers, and parameters, that every process of a mesh has as a whole while a layer runs.

::

    input      parts ──▶ gathered ──▶ the layer, on every process ──▶ own part        output
    gradient   parts ◀── own part ◀──                             ◀── gathered

So run layers of which nothing is split, and those whose operators cannot be followed. A parameter that no operator
splits as it is asked for is kept in parts, and gathered for each pass of its layer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeplan.core.strategies import PARTIAL, WHOLE, Placements
from pipeplan_executor.sharding.mesh.moves import MeshAxes, along
from pipeplan_executor.sharding.sequence import stream_of
from pipeplan_executor.sharding.shards import ParameterShard


def entered(tensors: Sequence[Tensor], placements: Placements, axes: MeshAxes) -> tuple[Tensor, ...]:
    """Return whole tensors from those between layers, of which one is in parts."""
    return _at_ends(tensors, placements, axes, True)


def left(tensors: Sequence[Tensor], placements: Placements, axes: MeshAxes) -> tuple[Tensor, ...]:
    """Return tensors as they pass between layers: of one, this process's part."""
    return _at_ends(tensors, placements, axes, False)


def _at_ends(tensors: Sequence[Tensor], placements: Placements, axes: MeshAxes, gathers: bool) -> tuple[Tensor, ...]:
    place = stream_of(tensors) if any(placement != WHOLE for placement in placements) else None
    return tuple(_moved(t, placements, axes, gathers) if n == place else t for n, t in enumerate(tensors))


def _moved(tensor: Tensor, placements: Placements, axes: MeshAxes, gathers: bool) -> Tensor:
    long = [n for n, length in enumerate(tensor.shape) if length > 1 or n == 0]
    cuts = [(axis, long[placement]) for axis, placement in enumerate(placements) if placement != WHOLE]
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _gathered(tensor, axes, cuts) if gathers else _parted(tensor, axes, cuts)
    made: Tensor = _End.apply(tensor, axes, cuts, gathers)
    return made


def _gathered(part: Tensor, axes: MeshAxes, cuts: Sequence[tuple[int, int]]) -> Tensor:
    for axis, dimension in reversed(cuts):
        part = along(part, axes, axis, dimension, WHOLE, ((),) * part.dim())
    return part


def _parted(whole: Tensor, axes: MeshAxes, cuts: Sequence[tuple[int, int]]) -> Tensor:
    for axis, dimension in cuts:
        whole = along(whole, axes, axis, WHOLE, dimension, ((),) * whole.dim())
    return whole


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axes: MeshAxes, cuts: Sequence[tuple[int, int]], gathers: bool) -> Tensor:
        ctx.axes, ctx.cuts, ctx.gathers = axes, cuts, gathers
        return _gathered(tensor, axes, cuts) if gathers else _parted(tensor, axes, cuts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        moved = _parted if ctx.gathers else _gathered
        return moved(gradient, ctx.axes, ctx.cuts), None, None, None


class Use(NamedTuple):
    """How a layer gets a parameter, where that is another part than the one that the process has.

    Attributes
    ----------
    kept : ParameterShard or None
        The part that the process keeps, of one that is gathered for the layer; on an axis of the mesh by itself.
    partial : bool
        Of a gathered one, whether the layer's gradients of it are parts of a sum.
    once : tuple of int
        Axes along which other layers' gradients of it are parts of a sum, and those of this layer are whole: they count
        on the first process.
    """

    kept: ParameterShard | None = None
    partial: bool = False
    once: tuple[int, ...] = ()

    def of(self, parameter: Tensor, axes: MeshAxes) -> Tensor:
        """Return the parameter as the layer gets it."""
        if not (parameter.requires_grad and torch.is_grad_enabled()):
            return self.whole(parameter, axes)
        made: Tensor = _Used.apply(parameter, axes, self)
        return made

    def whole(self, parameter: Tensor, axes: MeshAxes) -> Tensor:
        """Return what the layer gets."""
        if self.kept is None:
            return parameter.view_as(parameter)
        return along(parameter, axes, 0, self.kept.axis, WHOLE, self._groups)

    def back(self, gradient: Tensor, axes: MeshAxes) -> Tensor | None:
        """Return what the process adds of the layer's gradient."""
        if self.kept is not None:
            return along(gradient, axes, 0, PARTIAL if self.partial else WHOLE, self.kept.axis, self._groups)
        return None if any(axes.places[axis] for axis in self.once) else gradient

    @property
    def _groups(self) -> tuple[tuple[int, ...], ...]:
        assert self.kept is not None
        return tuple(self.kept.groups if axis == self.kept.axis else () for axis in range(len(self.kept.shape)))


class _Used(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, axes: MeshAxes, use: Use) -> Tensor:
        ctx.axes, ctx.use = axes, use
        return use.whole(parameter, axes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        return ctx.use.back(gradient, ctx.axes), None, None
