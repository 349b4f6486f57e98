"""What the devices of a mesh send each other in a layer: the collectives that its times are priced with."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pipeplan.core.words import LayerWords, Layout
from pipeplan.costs.meshes.problem import MeshProblem
from pipeplan.costs.meshes.relayouts import PlannedLayer
from pipeplan.costs.meshes.ways import way
from pipeplan.costs.teams.exchanges import BACKWARD, FORWARD, STEP
from pipeplan.costs.teams.signatures import Exchange, exchange


class SentAlong(NamedTuple):
    """A collective along an axis of a mesh.

    Attributes
    ----------
    kind : Exchange
    when : str
        As in `pipeplan.costs.teams.exchanges.Sent`.
    axis : int
    tensor : str
        The operator or input whose tensor, or its gradient, is moved; or whose weights are gathered or summed.
    size : int
        Bytes of what the devices along the axis have together, each of them all for sums.
    """

    kind: Exchange
    when: str
    axis: int
    tensor: str
    size: int


def mesh_exchanges(problem: MeshProblem, words: LayerWords) -> Iterator[SentAlong]:
    """Yield what devices send for a micro-batch, and once per step, in the words that are priced."""
    graph, layer = problem.rooflines.graph, PlannedLayer(problem.rooflines.graph, words, len(problem.mesh.sizes))
    for name in graph.inputs:
        yield from _moved(problem, name, BACKWARD, *layer.entering(name)[2:])
    for each in graph.operators:
        for source in each.reads:
            how = layer.reading(each, source)
            yield from _moved(problem, source, FORWARD, *how[:2])
            yield from _moved(problem, source, BACKWARD, *how[2:])
            if each.weights:
                yield from _moved(problem, source, BACKWARD, *how[:2], again=True)
        how = layer.making(each)
        yield from _moved(problem, each.name, FORWARD, *how[:2])
        yield from _moved(problem, each.name, BACKWARD, *how[2:])
        for kind, back, axis, size in problem.crossings(each, layer.signature(each).word):
            yield SentAlong(kind, BACKWARD if back else FORWARD, axis, each.name, size)
        for axis, size in problem.summed(each, layer.signature(each).word):
            yield SentAlong(Exchange.SUM, STEP, axis, each.name, size)


def _moved(
    problem: MeshProblem, name: str, when: str, source: Layout, target: Layout, again: bool = False
) -> Iterator[SentAlong]:
    gradient = when == BACKWARD and not again
    size, parts = problem.size(name, gradient), problem.parts(name)
    if source == target or not size:
        return
    mesh = problem.mesh
    found = way(source, target, size, mesh.sizes, mesh.links, parts)
    assert found is not None, f"{name} cannot be moved from {source} to {target}"
    for before, after in pairwise((source, *found)):
        (axis,) = (k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)
        kind = exchange(before[axis], after[axis])
        if kind is not None:
            others = 1
            for k, (n, entry) in enumerate(zip(mesh.sizes, before, strict=True)):
                others *= n if entry >= 0 and k != axis else 1
            yield SentAlong(kind, when, axis, name, -(-size // others))
