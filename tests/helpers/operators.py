"""Operators of small layers: a pair of linear maps, a transformer block, and linear maps behind a trunk."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.core.operators import INPUT, TOKEN, Attention, Operator, OperatorGraph, Weight


def linear(name: str, source: str, width: int, out: int, bias: int = 0, kept: bool = True) -> Operator:
    """A linear map of ten tokens."""
    weights = [Weight(f"{name}.weight", ("out", "in"), width * out)]
    weights += [Weight(f"{name}.bias", ("out",), bias)] if bias else []
    flops = 20 * width * out
    return Operator(
        name, "linear", {"out": out, "in": width}, {source: ("token", "in")}, ("token", "out"), 10 * out, kept,
        tuple(weights), flops, flops, flops,
    )  # fmt: skip


def pair(width: int = 8, inner: int = 32) -> OperatorGraph:
    """A perceptron: wide, elementwise, narrow."""
    axes = ("token", "feature")
    between = Operator("act", "elementwise", {"feature": inner}, {"wide": axes}, axes, 10 * inner, True)
    return OperatorGraph(
        (linear("wide", INPUT, width, inner), between, linear("narrow", "act", inner, width)), {INPUT: 10 * width}
    )


def block(width: int = 8, inner: int = 32) -> OperatorGraph:
    """A norm, a perceptron behind it, and the input beside both: ten tokens, of which operators may take parts."""
    axes, size = ("token", "feature"), 10 * width
    norm = Operator(
        "norm", "norm", {"token": 10}, {INPUT: axes}, axes, size, True, (Weight("norm.weight", ("feature",), 8),)
    )
    wide, act, narrow = pair(width, inner).operators
    wide = replace(wide, reads={"norm": ("token", "in")})
    add = Operator("add", "elementwise", {"token": 10}, {INPUT: axes, "narrow": axes}, axes, size, True)
    return OperatorGraph((norm, wide, act, replace(narrow, kept=False), add), {INPUT: size})


def of_many_tokens(tokens: int = 400, width: int = 8) -> OperatorGraph:
    """A linear map whose input and output are far larger than its weight, and which may have parts of the tokens."""
    own, size = linear("wide", INPUT, width, width), tokens * width
    own = replace(own, loops={"token": tokens, "in": width, "out": width}, output=size, product=True)
    return OperatorGraph((own,), {INPUT: size})


def dense(rows: int, widths: Sequence[int], trunk: int = 0) -> OperatorGraph:
    """Linear maps ``fc0``, ``fc1`` … of numbers of 4 bytes, with a loop over all rows; their sample is all of a step.

    ``trunk``: operations of a row in what runs before them, on rows only.
    """
    operators, source = [], INPUT
    if trunk:
        weight, flops = Weight("trunk.weight", ("filter",), 60_000_000), rows * trunk
        first = Operator("trunk", "convolution", {"row": rows}, {INPUT: ("row", "pixel")}, ("row", "feature"),
                         4 * rows * widths[0], True, (weight,), flops, 0, 2 * flops)  # fmt: skip
        operators, source = [first], "trunk"
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        loops, flops = {"row": rows, "in": inputs, "out": outputs}, 2 * rows * inputs * outputs
        weight = Weight(f"fc{number}.weight", ("out", "in"), 4 * inputs * outputs)
        operators.append(Operator(f"fc{number}", "linear", loops, {source: ("row", "in")}, ("row", "out"),
                                  4 * rows * outputs, True, (weight,), flops, flops, flops))  # fmt: skip
        source = f"fc{number}"
    return OperatorGraph(tuple(operators), {INPUT: 4 * rows * (150_528 if trunk else widths[0])})


def with_output(profile: Profile, output: int) -> Profile:
    """The profile in which all layers have outputs of so many bytes."""
    return replace(profile, costs=tuple(replace(cost, output=output) for cost in profile.costs))


COST = LayerCost(12_000, 24_000, 12_000, 12_000, saved=720, output=80, update=600)


def perceptrons(count: int = 4, sizes: tuple[int, ...] = (1, 2), graph: OperatorGraph | None = None) -> Model:
    """Equal layers of two linear maps, or of a graph of operators."""
    graph = graph or pair()
    names = [f"l{i}" for i in range(count)]
    layers = tuple(
        Layer(name, graph.parameters, tuple(names[i - 1 : i] if i else ()), operators="pair")
        for i, name in enumerate(names)
    )
    times = [
        Profile("unit", size, (replace(COST, forward=size * COST.forward),) * count, Provenance("imported", "test"))
        for size in sizes
    ]
    return Model("perceptrons", layers, tuple(times), operators={"pair": graph})


def attention_block(heads: int = 8, tokens: int = 8, causal: bool = False, products: bool = True) -> OperatorGraph:
    """A norm, projections to queries, keys and values, attention, a projection behind it, and the input beside.

    ``products``: operators with matrices may have parts of the tokens.
    """
    axes, size = (TOKEN, "feature"), 8 * tokens
    norm = Operator("norm", "norm", {TOKEN: tokens}, {INPUT: axes}, axes, size, True)

    def projection(name: str, source: str, names: tuple[str, str]) -> Operator:
        one, other = names
        loops = {"in": heads, "out": heads} | ({TOKEN: tokens} if products else {})
        rows, flops = (Weight(f"{name}.weight", ("out", "in"), 64),), 128 * tokens
        reads, makes = {source: (TOKEN, one)}, (TOKEN, other)
        return Operator(name, "linear", loops, reads, makes, size, True, rows, flops, flops, flops, product=True)

    parts = [projection(name, "norm", ("in", "out")) for name in ("query", "key", "value")]
    rows = dict.fromkeys(("query", "key", "value"), (TOKEN, "head"))
    attention = Operator(
        "attention", "attention", {"head": heads, TOKEN: tokens}, rows, (TOKEN, "head"), size, True,
        forward_flops=64 * tokens, input_gradient_flops=128 * tokens,
        attention=Attention(size, 2 * size, heads, causal),
    )  # fmt: skip
    out = projection("out", "attention", ("in", "out"))
    add = Operator("add", "elementwise", {TOKEN: tokens}, {INPUT: axes, "out": axes}, axes, size, True)
    return OperatorGraph((norm, *parts, attention, out, add), {INPUT: size})
