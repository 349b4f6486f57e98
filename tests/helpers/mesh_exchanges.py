"""Exchanges of the devices of a mesh in a layer: the collectives that its times are priced with."""

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import NamedTuple

from pipeplan.core.operators import Operator
from pipeplan.core.strategies import LayerStrategies, Placements, Strategy
from pipeplan.costs.sharding.attention import split_attention
from pipeplan.costs.sharding.exchanges import Exchange, exchange
from pipeplan.costs.sharding.layer_redistributions import PlannedLayer, waits
from pipeplan.costs.sharding.prices import class_axes, gather_order, weight_parts
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.redistributions import path
from pipeplan.costs.sharding.strategies import ungathered

FORWARD, BACKWARD = "forward", "backward"


class SentAlong(NamedTuple):
    """A collective along an axis of a mesh.

    Attributes
    ----------
    kind : Exchange
    when : str
        ``'forward'`` or ``'backward'``.
    axis : int
    tensor : str
        The operator or input whose tensor, or its gradient, is moved.
    size : int
        Bytes of what the devices along the axis have together, each of them all for sums.
    later : bool
        Whether it belongs to the weight gradient of a split backward.
    """

    kind: Exchange
    when: str
    axis: int
    tensor: str
    size: int
    later: bool = False


def mesh_exchanges(problem: MeshProblem, strategies: LayerStrategies) -> Iterator[SentAlong]:
    """Yield what devices send for a micro-batch of one layer, in the strategies that are priced.

    Sums of weights' gradients once per step are left out.
    """
    graph, layer = problem.graph, PlannedLayer(problem.graph, strategies, len(problem.mesh.sizes))
    for name in graph.inputs:
        yield from _moved(problem, name, BACKWARD, *layer.entering(name)[2:])
    for name in graph.outputs:
        yield from _moved(problem, name, BACKWARD, *layer.leaving(name)[2:])
    for name in problem.tensors:
        if (copying := layer.copying(name)) is not None:
            yield from _moved(problem, name, FORWARD, *copying[:2])
            copy = strategies.copies[name]
            if not copy.kept and any(layer.moves_again(layer.operators[reader]) for reader in copy.readers):
                for each in _moved(problem, name, BACKWARD, *copying[:2], again=True):
                    yield each._replace(later=not layer.copied_for_inputs(name))
    for each in graph.operators:
        strategy = layer.signature(each).strategy
        for source in each.reads:
            how = layer.reading(each, source)
            yield from _moved(problem, source, FORWARD, *how[:2])
            yield from _moved(problem, source, BACKWARD, *how[2:])
            if layer.moves_again(each):
                for sent in _moved(problem, source, BACKWARD, *how[:2], again=True):
                    yield sent._replace(later=waits(graph, each, source))
        how = layer.making(each)
        yield from _moved(problem, each.name, FORWARD, *how[:2])
        yield from _moved(problem, each.name, BACKWARD, *how[2:])
        attention = split_attention(problem.own(each).rooflines, each, strategy, problem.mesh.sizes)
        for kind, back, axis, size in (*attention.exchanges(), *attention.shifts()) if attention is not None else ():
            yield SentAlong(kind, BACKWARD if back else FORWARD, axis, each.name, size)
        yield from _weights(problem, each, strategy)
        if graph.loss is not None and each.name == graph.loss_name:
            rows = graph.loss.rows * problem.rooflines.micro_batch
            for axis in class_axes(strategy):  # the largest logit of each row, and the sum of exponentials
                yield from [SentAlong(Exchange.SUM, FORWARD, axis, each.name, rows)] * 2


def _weights(problem: MeshProblem, operator: Operator, strategy: Strategy) -> Iterator[SentAlong]:
    """Yield what is sent to gather weights, again in the backward, and to scatter their gradients."""
    sizes, order = problem.mesh.sizes, gather_order(operator, strategy, problem.mesh)
    for weight in operator.weights:
        own = [axis for axis in order if strategy[axis].loop not in weight.loops]
        held = ungathered(strategy)
        for k, axis in enumerate(own):
            size = weight.size // weight_parts(weight, held, sizes) // prod(sizes[later] for later in own[k + 1 :])
            for kind, when in ((Exchange.GATHER, FORWARD), (Exchange.GATHER, BACKWARD), (Exchange.SCATTER, BACKWARD)):
                yield SentAlong(kind, when, axis, weight.name, size, kind is Exchange.SCATTER)


def _moved(
    problem: MeshProblem, name: str, when: str, source: Placements, target: Placements, again: bool = False
) -> Iterator[SentAlong]:
    tensor = problem.tensors[name]
    size = tensor.gradient if when == BACKWARD and not again else tensor.size
    if source == target or not size:
        return
    mesh = problem.mesh
    found = path(source, target, size, mesh, tensor.parts)
    assert found is not None, f"{name} cannot be moved from {source} to {target}"
    for before, after in pairwise((source, *found)):
        (axis,) = (k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)
        kind = exchange(before[axis], after[axis])
        if kind is not None:
            rows = enumerate(zip(mesh.sizes, before, strict=True))
            others = prod(n for k, (n, entry) in rows if entry >= 0 and k != axis)
            yield SentAlong(kind, when, axis, name, -(-size // others))
