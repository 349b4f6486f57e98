"""What the ways of teams split: weights by axis, and what else runs on parts, by the names of layers' operators."""

from pipeplan.core.model import Model
from pipeplan.core.operators import TOKEN
from pipeplan.core.splits import Split
from pipeplan.core.strategies import BY_KEYS, UNSPLIT, LayerStrategies

Cuts = dict[str, int | str]
"""Weights and the axis of each; products on parts of the tokens, how attention on these gets keys, and the loss."""


def cuts(model: Model, split: Split, layer: int = 0) -> Cuts:
    """Return what a way along one axis splits of a layer, at the first micro-batch size on the first kind."""
    strategies = next(iter(split.strategies.values()))[layer]
    return cuts_of(model, model.layers[layer].operators, strategies)


def cuts_of(model: Model, operators: str, strategies: LayerStrategies) -> Cuts:
    """Return what a layer with these operators splits."""
    graph, found = model.operators[operators], Cuts()
    for each in graph.operators:
        (entry,) = strategies.operators[each.name].strategy
        found |= {weight.name: weight.loops.index(entry.loop) for weight in each.weights if entry.loop in weight.loops}
        if each.by_plan and entry.loop == TOKEN:
            found[each.name] = TOKEN if each.attention is None else entry.by or BY_KEYS
        if each.name == graph.loss_name and entry.loop != UNSPLIT:
            found[each.name] = "classes"
    return found
