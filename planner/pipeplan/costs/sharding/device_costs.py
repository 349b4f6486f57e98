"""Costs of a layer on each device under given strategies: times of passes, bytes kept and sent, workspace."""

from collections.abc import Sequence
from math import prod

from pipeplan.core.model import LayerCost
from pipeplan.core.strategies import WHOLE, LayerStrategies
from pipeplan.costs.sharding.attention import split_attention
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.placements import stream
from pipeplan.costs.sharding.prices import class_axes, exchanged
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import PASSES
from pipeplan.costs.sharding.strategies import share


def device_cost(problem: MeshProblem, strategies: LayerStrategies, costs: Sequence[int]) -> LayerCost:
    """Return the costs of a layer on each device, given those in `COORDINATES`."""
    layer, of = problem.layer, dict(zip(COORDINATES, costs, strict=True))
    more = longer(problem, strategies)
    return LayerCost(
        **{name: of[name] + layer.constant(name) + more[name] for name in PASSES},
        saved=of["saved"],
        output=_output(problem, splits_loss(problem, strategies)),
        workspace=layer.cost.workspace_for(of["saved"]) + _at_once(problem, strategies),
        update=of["update"] + of["summed"],
    )


def longer(problem: MeshProblem, strategies: LayerStrategies) -> dict[str, int]:
    """Return the nanoseconds of each pass that operators take longer because they are split; sums over layers."""
    return {name: strategies.splits_any * time for name, time in if_split(problem).items()}


def if_split(problem: MeshProblem) -> dict[str, int]:
    """Return the nanoseconds of each pass that operators take longer if any of them is split; sums over layers."""
    overhead, operators = problem.layer.kind.shard_overhead, problem.graph.operators
    more = dict.fromkeys(("forward", "input_gradient"), overhead * len(operators))
    more["weight_gradient"] = overhead * sum(bool(operator.weights) for operator in operators)
    more = {
        name: time * sum(count for own, count in problem.every_layer if getattr(own.cost, name))
        for name, time in more.items()
    }
    return more | {"backward": more["input_gradient"] + more["weight_gradient"]}


def splits_loss(problem: MeshProblem, strategies: LayerStrategies) -> tuple[int, ...]:
    """Return the axes along which a layer's loss is split."""
    name = problem.graph.loss_name
    return class_axes(strategies.operators[name].strategy) if name else ()


def _at_once(problem: MeshProblem, strategies: LayerStrategies) -> int:
    """Most bytes that an operator needs beside what is kept.

    Weights that are gathered for it and their gradients, keys and theirs, copies that operators before it or itself
    read and it or those behind it do, unless they are kept, and tensors that it reads in fewer parts than they are held
    in.
    """
    needs, sizes = [0], problem.mesh.sizes
    copies = _copies_at(problem, strategies)
    for number, operator in enumerate(problem.graph.operators):
        strategy = strategies.operators[operator.name].strategy
        weights = exchanged(operator, strategy, sizes, True)
        attention = split_attention(problem.own(operator).rooflines, operator, strategy, sizes)
        needed = 2 * sum(size for size, axes in weights if axes)
        needed += 0 if attention is None else attention.beside
        needed += sum(size for first, last, size in copies if first <= number <= last)
        for source in operator.reads:
            need, copy = problem.needed(operator, strategy, source), strategies.copies.get(source)
            if copy is None or (operator.name, need) not in ((reader, copy.placements) for reader in copy.readers):
                held, read = problem.held(source, strategies), share(need, sizes)
                needed += problem.tensors[source].size // read * (read < share(held, sizes))
        needs.append(needed)
    return max(needs)


def least_output(problem: MeshProblem) -> int:
    """Return the least bytes of a device's outputs under any strategies."""
    return _output(problem, tuple(range(len(problem.mesh.sizes))) if problem.graph.loss_name else ())


def _output(problem: MeshProblem, axes: tuple[int, ...]) -> int:
    """Bytes of a device's outputs; those beside the one that is split are whole. Of logits it has its classes.

    ``axes``: those along which the loss is split.
    """
    graph, cost, sizes = problem.graph, problem.layer.cost, problem.mesh.sizes
    if axes:
        return -(-cost.output // prod(sizes[axis] for axis in axes))
    if set(problem.output) <= {WHOLE}:
        return cost.output
    split = stream(graph, graph.outputs)
    every = {**graph.inputs} | {operator.name: operator.output for operator in graph.operators}
    beside = sum(every[name] for name in graph.outputs if name != split) * problem.layer.micro_batch
    beside = min(beside, cost.output)
    return beside - (beside - cost.output) // share(problem.output, sizes)


def _copies_at(problem: MeshProblem, strategies: LayerStrategies) -> list[tuple[int, int, int]]:
    """The copies that are not kept: numbers of the first and the last operator that reads one, and its bytes."""
    copies = []
    for name, (placements, readers, kept) in strategies.copies.items():
        if kept:
            continue
        places = [problem.index[reader] for reader in readers]
        size = problem.tensors[name].size // share(placements, problem.mesh.sizes)
        copies.append((min(places), max(places), size))
    return copies
