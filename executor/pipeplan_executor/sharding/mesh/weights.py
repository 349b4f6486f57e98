"""`MeshWeight`: how a parameter of a layer lies on a mesh, and how it is gathered for its operator."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.operators import Operator, Weight
from pipeplan.core.strategies import PARTIAL, UNSPLIT, WHOLE, Placements, Strategy
from pipeplan.costs.sharding.layer_redistributions import PlannedLayer
from pipeplan.costs.sharding.prices import gather_order
from pipeplan.costs.sharding.strategies import gathered_along
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.split_backward.queue import WeightQueue, add_gradient, plain
from pipeplan_executor.sharding.mesh.moves import Groups, MeshAxes, along
from pipeplan_executor.sharding.shards import ParameterShard


class Cut(NamedTuple):
    """A dimension of a parameter that an axis of the mesh splits; ``gathered``: it is gathered for each pass."""

    axis: int
    dimension: int
    groups: Groups = ()
    gathered: bool = False


@dataclass(frozen=True)
class MeshWeight:
    """A parameter on a mesh.

    Attributes
    ----------
    name : str
        Of the weight among the operators.
    operator : str
    shape : tuple of int
        Of the whole parameter.
    cuts : tuple of Cut
        The outermost first; gathered ones are innermost.
    needed : Placements
        In which the operator gets it.
    summed : tuple of int
        Axes along which gradients are parts of a sum, which is made once per step.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]
    needed: Placements
    summed: tuple[int, ...]

    def shard(self, axes: MeshAxes) -> ParameterShard | None:
        """Return the part of the parameter that this process keeps; None for the whole."""
        found: ParameterShard | None = None
        for cut in self.cuts:
            count, place = axes.sizes[cut.axis], axes.places[cut.axis]
            found = ParameterShard(self.shape, cut.dimension, count, place, found, cut.groups)
        return found

    def gathered(self, part: Tensor, axes: MeshAxes, queue: WeightQueue | None = None) -> Tensor:
        """Return the parameter as its operator needs it; its gradient is scattered, later if the queue takes it."""
        if not any(cut.gathered for cut in self.cuts):
            return part
        if not (part.requires_grad and torch.is_grad_enabled()):
            return self.whole(part, axes)
        made: Tensor = _Gathered.apply(part, axes, self, queue)
        return made

    def whole(self, part: Tensor, axes: MeshAxes) -> Tensor:
        """Return a part with what is gathered, innermost first."""
        for cut in reversed([cut for cut in self.cuts if cut.gathered]):
            part = along(part, axes, cut.axis, cut.dimension, WHOLE, self._groups(cut))
        return part

    def scattered(self, gradient: Tensor, axes: MeshAxes) -> Tensor:
        """Return this process's part of the sum of gradients along what is gathered."""
        for cut in self.cuts:
            if cut.gathered:
                gradient = along(gradient, axes, cut.axis, PARTIAL, cut.dimension, self._groups(cut))
        return gradient

    def _groups(self, cut: Cut) -> tuple[Groups, ...]:
        return tuple(cut.groups if k == cut.dimension else () for k in range(len(self.shape)))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, axes: MeshAxes, weight: MeshWeight, queue: WeightQueue | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.part, ctx.axes, ctx.weight, ctx.queue = part, axes, weight, queue
        return weight.whole(part, axes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if gradient is None:  # it is delayed
            return None, None, None, None
        if ctx.queue is not None and ctx.queue.is_open and plain(ctx.part):
            ctx.queue.put(partial(_add_scattered, ctx.part, ctx.weight, ctx.axes, gradient))
            return None, None, None, None
        return ctx.weight.scattered(gradient, ctx.axes), None, None, None


def _add_scattered(part: nn.Parameter, weight: MeshWeight, axes: MeshAxes, gradient: Tensor) -> None:
    add_gradient(part, weight.scattered(gradient, axes))


def mesh_weights(program: Program, plan: PlannedLayer, axes: MeshAxes) -> dict[str, MeshWeight]:
    """Return the parameters of a layer that operators read, by their names in it.

    Raises
    ------
    PlanError
        If a parameter cannot be divided as planned.
    """
    found: dict[str, MeshWeight] = {}
    of = {weight.name: (operator, weight) for operator in plan.graph.operators for weight in operator.weights}
    for local, parameter in program.record.parameters.items():
        view = program.given.get(id(parameter))
        if view is not None and view.source.name in of:
            operator, weight = of[view.source.name]
            strategy = plan.signature(operator).strategy
            found[local] = _on_mesh(operator, weight, strategy, tuple(parameter.shape), axes)
    return found


def _on_mesh(
    operator: Operator, weight: Weight, strategy: Strategy, shape: tuple[int, ...], axes: MeshAxes
) -> MeshWeight:
    cuts: list[Cut] = []
    summed = []
    for axis, entry in enumerate(strategy):
        if entry.loop == UNSPLIT or axis == len(axes.base.sizes):  # gradients of slices add up by themselves
            continue
        if entry.loop in weight.loops:
            cuts.append(Cut(axis, weight.loops.index(entry.loop), tuple(operator.groups.get(entry.loop, ()))))
        elif entry.loop in operator.makes and not entry.gathers:
            summed.append(axis)
    needed = tuple(next((cut.dimension for cut in cuts if cut.axis == axis), WHOLE) for axis in range(len(strategy)))
    kept = gathered_along(operator, weight, strategy, axes.sizes)
    if kept is None:
        raise PlanError(f"{weight.name} of shape {shape} cannot be kept in parts as the plan has it; solve again")
    order = gather_order(operator, strategy, axes.priced)  # what is gathered first is innermost
    cuts += [Cut(axis, kept[axis], gathered=True) for axis in reversed(order) if axis in kept]
    return MeshWeight(weight.name, operator.name, shape, tuple(cuts), needed, tuple(summed))
