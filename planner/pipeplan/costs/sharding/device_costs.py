"""Costs of a layer on each device under given words: times of passes, bytes that are kept and sent, and workspace."""

from collections.abc import Sequence
from math import prod

from pipeplan.core.model import LayerCost
from pipeplan.core.words import WHOLE, LayerWords
from pipeplan.costs.sharding.attention import split_attention
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.placements import stream
from pipeplan.costs.sharding.prices import class_axes, exchanged
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import PASSES
from pipeplan.costs.sharding.words import share


def device_cost(problem: MeshProblem, words: LayerWords, costs: Sequence[int]) -> LayerCost:
    """Return the costs of a layer on each device, given those in `COORDINATES`."""
    own, of = problem.layer, dict(zip(COORDINATES, costs, strict=True))
    more = longer(problem, words)
    return LayerCost(
        **{name: of[name] + own.constant(name) + more[name] for name in PASSES},
        saved=of["saved"],
        output=_output(problem, words),
        workspace=own.cost.workspace_for(of["saved"]) + _at_once(problem, words),
        update=of["update"] + of["summed"],
    )


def longer(problem: MeshProblem, words: LayerWords) -> dict[str, int]:
    """Return the nanoseconds of each pass that operators take longer because they are split."""
    cost, each = problem.layer.cost, problem.layer.kind.shard_overhead * words.splits_any
    operators = problem.graph.operators
    found = dict.fromkeys(("forward", "input_gradient"), each * len(operators))
    found["weight_gradient"] = each * sum(bool(operator.weights) for operator in operators)
    found = {name: time if getattr(cost, name) else 0 for name, time in found.items()}
    return found | {"backward": found["input_gradient"] + found["weight_gradient"]}


def splits_loss(problem: MeshProblem, words: LayerWords) -> tuple[int, ...]:
    """Return the axes along which a layer's loss is split."""
    name = problem.graph.loss_name
    return class_axes(words.operators[name].word) if name else ()


def _at_once(problem: MeshProblem, words: LayerWords) -> int:
    """Most bytes that an operator needs beside what is kept.

    Weights that are gathered for it and their gradients, keys and theirs, copies that operators before it or itself
    read and it or those behind it do, unless they are kept, and tensors that it reads in fewer parts than they are held
    in.
    """
    found, sizes = [0], problem.mesh.sizes
    copies = _copies_at(problem, words)
    for number, each in enumerate(problem.graph.operators):
        word = words.operators[each.name].word
        weights = exchanged(each, word, sizes, True)
        attention = split_attention(problem.own(each).rooflines, each, word, sizes)
        own = 2 * sum(size for size, axes in weights if axes)
        own += 0 if attention is None else attention.beside
        own += sum(size for first, last, size in copies if first <= number <= last)
        for source in each.reads:
            need, copy = problem.needed(each, word, source), words.copies.get(source)
            if copy is None or (each.name, need) not in ((reader, copy.placements) for reader in copy.readers):
                held, read = problem.held(source, words), share(need, sizes)
                own += problem.tensors[source].size // read * (read < share(held, sizes))
        found.append(own)
    return max(found)


def _output(problem: MeshProblem, words: LayerWords) -> int:
    """Bytes of a device's outputs; those beside the one that is split are whole. Of logits it has its classes."""
    graph, cost, sizes = problem.graph, problem.layer.cost, problem.mesh.sizes
    axes = splits_loss(problem, words)
    if axes:
        return -(-cost.output // prod(sizes[axis] for axis in axes))
    if set(problem.output) <= {WHOLE}:
        return cost.output
    own = stream(graph, graph.outputs)
    every = {**graph.inputs} | {each.name: each.output for each in graph.operators}
    beside = sum(every[name] for name in graph.outputs if name != own) * problem.layer.micro_batch
    beside = min(beside, cost.output)
    return beside - (beside - cost.output) // share(problem.output, sizes)


def _copies_at(problem: MeshProblem, words: LayerWords) -> list[tuple[int, int, int]]:
    """The copies that are not kept: numbers of the first and the last operator that reads one, and its bytes."""
    found = []
    for name, (placements, readers, kept) in words.copies.items():
        if kept:
            continue
        places = [problem.index[reader] for reader in readers]
        size = problem.tensors[name].size // share(placements, problem.mesh.sizes)
        found.append((min(places), max(places), size))
    return found
