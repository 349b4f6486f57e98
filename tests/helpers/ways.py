"""What the ways of teams split: weights by axis, and what else runs on parts, by the names of layers' operators."""

from pipeplan.core.model import Model
from pipeplan.core.operators import TOKEN
from pipeplan.core.splits import Split
from pipeplan.core.words import BY_KEYS, UNSPLIT, LayerWords

Cuts = dict[str, int | str]
"""Weights and the axis of each; products on parts of the tokens, how attention on these gets keys, and the loss."""


def cuts(model: Model, split: Split, layer: int = 0) -> Cuts:
    """Return what a way along one axis splits of a layer, at the first micro-batch size on the first kind."""
    words = next(iter(split.words.values()))[layer]
    return cuts_of(model, model.layers[layer].operators, words)


def cuts_of(model: Model, operators: str, words: LayerWords) -> Cuts:
    """Return what a layer with these operators splits."""
    graph, found = model.operators[operators], Cuts()
    for each in graph.operators:
        (letter,) = words.operators[each.name].word
        found |= {
            weight.name: weight.loops.index(letter.loop) for weight in each.weights if letter.loop in weight.loops
        }
        if each.by_plan and letter.loop == TOKEN:
            found[each.name] = TOKEN if each.attention is None else letter.by or BY_KEYS
        if each.name == graph.loss_name and letter.loop != UNSPLIT:
            found[each.name] = "classes"
    return found
