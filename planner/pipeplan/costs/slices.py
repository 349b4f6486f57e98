"""Models whose samples are token slices: what a slice of average work takes, sends and keeps; see `docs/costs.md`.

A slice is a sample of a shorter sequence: profiles, rooflines and teams price it like any other model, or slices were
measured. Where slices differ, in attention, `pipeplan.costs.table` shares out the time of all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model, Profile
from pipeplan.core.operators import TOKEN, Operator, OperatorGraph
from pipeplan.core.slicing import Shares, SlicedLayer, Slicing, check_divides
from pipeplan.costs.measured_slices import measured, shares_at

_APART = ("add", "sub", "mul", "rms norm")
"""Operators that compute each token by itself, though no team splits their tokens: with tables of positions, say."""


def sliced(model: Model, count: int) -> Model:
    """Return the model of which a sample is one of ``count`` equal token slices of a sequence.

    Raises
    ------
    InputError
        If the model cannot run in slices, naming layer and operator, or the number does not divide its tokens.
    """
    tokens = _tokens_to_cut(model)
    check_divides(count, tokens, model.name)
    return _of_length(model, Slicing(count, tokens // count, ()))


def cut(model: Model, lengths: Sequence[int]) -> Model:
    """Return the model of which a sample is a slice of a sequence that is cut into slices of these tokens.

    Raises
    ------
    InputError
        If the model cannot run in slices.
    """
    tokens = _tokens_to_cut(model)
    if sum(lengths) != tokens or min(lengths) < 1:
        raise ValueError(f"slices of {lengths} do not make up {tokens} tokens")
    models = {own: slice_of(model, own) for own in sorted({*lengths})}
    longest = models[max(lengths)]
    assert longest.slicing is not None
    own = replace(longest.slicing, count=len(lengths), lengths=tuple(lengths))
    return replace(longest, slicing=own, of_length=models)


def slice_of(model: Model, tokens: int) -> Model:
    """Return the model of which a sample is one slice of so many tokens, of a model that runs in slices."""
    return _of_length(model, Slicing(1, tokens, ()))


def _tokens_to_cut(model: Model) -> int:
    for fault in _faults(model):
        raise InputError(
            f"{model.name} does not run in token slices: {fault}; ask for whole sequences (leave slices out, or 1)"
        )
    return model.tokens


def _of_length(model: Model, slicing: Slicing) -> Model:
    """The model of which a sample is a slice of so many tokens."""
    part = Fraction(slicing.tokens, model.tokens)
    known, shares = measured(
        model, slicing.tokens, lambda profile, own: _derived(model, profile, Fraction(own, model.tokens))
    )
    layers = tuple(_sliced_layer(model, layer, part) for layer in model.layers)
    return replace(
        model,
        layers=tuple(_layer(layer, part) for layer in model.layers),
        operators={name: _graph(graph, part) for name, graph in model.operators.items()},
        profiles=tuple(replace(each, costs=_derived(model, each, part)) for each in model.profiles),
        slice_profiles=(),
        slicing=replace(slicing, layers=layers, measured=known, shares=shares),
    )


def _faults(model: Model) -> Iterator[str]:
    """Yield why a model does not run in slices: layers of unknown operators, and operators that mix tokens."""
    tokens = model.tokens
    for layer in model.layers:
        if layer.operators not in model.operators:
            yield f"the operators of layer {layer.name!r} are not known"
            continue
        graph = model.operators[layer.operators]
        for each in graph.operators:
            why = None if each.name in graph.loss_names else _mixes(each, tokens)
            if why is not None:
                yield f"operator {each.name!r} ({each.kind}) of layer {layer.name!r} {why}"


def _mixes(operator: Operator, tokens: int) -> str | None:
    """Return how an operator treats tokens otherwise than one by one; None if slices of them suffice."""
    has = any(TOKEN in axes for axes in (operator.makes, *operator.reads.values()))
    if operator.attention is not None and not operator.attention.looks_back:
        return "looks ahead: its queries may attend to later tokens"
    if not has and not operator.reads:
        return None
    rows = (operator.makes, *operator.reads.values())
    by_token = not any(TOKEN in weight.loops for weight in operator.weights) if operator.kind == "rms norm" else True
    if operator.kind in _APART and by_token and all(TOKEN in row for row in rows):
        return None
    if operator.loops.get(TOKEN) != tokens:
        return "is not known to compute each token by itself (a pooling, a state, or another axis of tokens)"
    return None


class SliceCosts(NamedTuple):
    """Costs of each layer for a slice of average work, and what part of its times attention is."""

    costs: tuple[LayerCost, ...]
    shares: Shares


def slice_costs(
    model: Model, kind: DeviceKind, micro_batch: int, given: Callable[[Model], tuple[LayerCost, ...]]
) -> SliceCosts:
    """Return the costs of a slice on a kind of device; ``given(model)``: those of a sample of any model.

    Measured slices hold for devices alone. They ran operator by operator, like the others, which take longer by that.
    """
    slicing, name = model.slicing, kind.timed_as or kind.name
    assert slicing is not None
    if kind.team == 1 and any(each.device == name for each in slicing.measured):
        return SliceCosts(
            given(replace(model, profiles=slicing.measured)), shares_at(slicing.shares, name, micro_batch)
        )
    return SliceCosts(one_by_one(model, given(model), kind), slicing.counted)


def one_by_one(model: Model, costs: tuple[LayerCost, ...], kind: DeviceKind) -> tuple[LayerCost, ...]:
    """Return the costs of layers of which a device alone runs one operator after the other, as it runs slices."""
    if kind.team > 1 or not kind.shard_overhead:
        return costs
    found = []
    for layer, cost in zip(model.layers, costs, strict=True):
        operators = model.operators[layer.operators].operators
        counts = {"forward": len(operators), "input_gradient": len(operators)}
        counts["weight_gradient"] = sum(bool(each.weights) for each in operators)
        more = {name: kind.shard_overhead * n * bool(getattr(cost, name)) for name, n in counts.items()}
        more["backward"] = more["input_gradient"] + more["weight_gradient"]
        found.append(replace(cost, **{name: getattr(cost, name) + time for name, time in more.items()}))
    return tuple(found)


def _sliced_layer(model: Model, layer: Layer, part: Fraction) -> SlicedLayer:
    operators = model.operators[layer.operators].operators
    attention = [each for each in operators if each.attention is not None]

    def share(*passes: str) -> Fraction:
        own, every = (sum(getattr(each, name) for each in row for name in passes) for row in (attention, operators))
        return Fraction(own, every) if every else Fraction(0)

    keys = {each.name: ceil(each.attention.keys * part) for each in attention if each.attention is not None}
    inputs, weights = "input_gradient_flops", "weight_gradient_flops"
    return SlicedLayer(share("forward_flops"), share(inputs, weights), share(inputs), share(weights), keys)


def _layer(layer: Layer, part: Fraction) -> Layer:
    if layer.work is None:
        return layer
    names = ("forward_flops", "input_gradient_flops", "weight_gradient_flops", "output", "saved", "workspace")
    parts: dict[str, Any] = {name: ceil(getattr(layer.work, name) * part) for name in names}
    return replace(layer, work=replace(layer.work, **parts))


def _graph(graph: OperatorGraph, part: Fraction) -> OperatorGraph:
    """The operators of a layer for one slice: what has tokens is a part."""
    return replace(
        graph,
        operators=tuple(_operator(each, part) for each in graph.operators),
        inputs={name: ceil(size * part) for name, size in graph.inputs.items()},
        loss=graph.loss and replace(graph.loss, rows=ceil(graph.loss.rows * part)),
    )


def _operator(operator: Operator, part: Fraction) -> Operator:
    if not operator.reads:
        return operator
    names = ("output", "forward_flops", "input_gradient_flops", "weight_gradient_flops")
    attention = operator.attention
    if attention is not None:
        queries, keys = (ceil(size * part) for size in (attention.queries, attention.keys))
        attention = replace(attention, queries=queries, keys=keys)
    loops = {loop: int(many * part) if loop == TOKEN else many for loop, many in operator.loops.items()}
    parts = {name: ceil(getattr(operator, name) * part) for name in names}
    return replace(operator, loops=loops, attention=attention, **parts)


def _derived(model: Model, profile: Profile, part: Fraction) -> tuple[LayerCost, ...]:
    """The costs of slices by a profile of whole sequences: of a micro-batch of b samples, what one of b / S takes."""
    known = {each.micro_batch: each.costs for each in model.profiles if each.device == profile.device}
    return tuple(
        _cost({size: row[i] for size, row in known.items()}, profile.micro_batch * part)
        for i in range(len(model.layers))
    )


def _cost(known: Mapping[int, LayerCost], size: Fraction) -> LayerCost:
    """The cost of a layer at a size that need not be whole: on the line through the measured sizes beside it.

    Below the smallest size it is the line through the two smallest: what does not depend on the size stays. It is at
    least in proportion, which it is with one size, and at most what the smallest takes.
    """
    sizes = sorted(known)
    low = max((each for each in sizes if each <= size), default=sizes[0])
    high = min((each for each in sizes if each > low), default=low)

    def at(name: str) -> int:
        first, last = getattr(known[low], name), getattr(known[high], name)
        if name == "update" or low == size:
            return int(first)
        line = first + (size - low) * Fraction(last - first, high - low) if high > low else Fraction(0)
        return round(line if size > low else min(max(line, first * size / low), Fraction(first)))

    return LayerCost(**{each.name: at(each.name) for each in fields(LayerCost)})
