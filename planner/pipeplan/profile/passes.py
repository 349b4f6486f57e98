"""One timed pass over a row of layers, as a pipeline stage makes it: joined backward, or split backward.

::

    mark  0        1        2        3        forward: layer i lies between mark i and mark i + 1
          │ layer0 │ layer1 │ layer2 │ loss
          ▼        ▼        ▼        ▼
    back  3        2        1        0        backward runs the other way; a hook on each layer's output marks the
                                              moment its gradient is ready, inside one call of the engine
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

from pipeplan.errors import InputError
from pipeplan.profile.clock import Clock

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Feed:
    """What goes into a row of layers: a batch, whether a gradient must come back, and the loss behind the last layer.

    ``loss`` is None where other layers follow; backward then starts from a gradient of ones.
    """

    inputs: torch.Tensor
    wants_gradient: bool
    loss: Loss | None = None
    targets: Any = None

    def leaf(self) -> torch.Tensor:
        """The batch as the start of a graph of its own, sharing its memory."""
        leaf = self.inputs.detach()
        return leaf.requires_grad_() if self.wants_gradient and leaf.is_floating_point() else leaf


def joined_pass(
    layers: Sequence[nn.Module],
    feed: Feed,
    mark_forward: Callable[[int], None],
    mark_backward: Callable[[int], None],
) -> None:
    """All layers forward, the loss, and one joined backward.

    ``mark_forward(i)`` is called when layer i ends (−1 before the first); the loss belongs to the last layer.
    ``mark_backward(i)`` is called when the backward pass of layer i begins, ``mark_backward(-1)`` when all is done.
    A layer whose output needs no gradient gets no mark.
    """
    last = len(layers) - 1
    leaf = value = feed.leaf()
    mark_forward(-1)
    for number, layer in enumerate(layers):
        value = run_layer(layer, value)
        if number < last:
            if value.requires_grad:
                value.register_hook(lambda _gradient, number=number: mark_backward(number))
            mark_forward(number)
    if feed.loss is not None:
        value = feed.loss(value, feed.targets)
    mark_forward(last)
    if value.requires_grad:
        mark_backward(last)
        gradient = None if feed.loss is not None else (torch.ones_like(value),)
        stage_backward((value,), gradient or (None,), [leaf])
    mark_backward(-1)


def time_joined(layers: Sequence[nn.Module], feed: Feed, clock: Clock) -> tuple[list[int], list[int]]:
    """Nanoseconds of each layer's forward and joined backward."""
    forward: dict[int, Any] = {}
    backward: dict[int, Any] = {}
    joined_pass(
        layers,
        feed,
        lambda number: forward.__setitem__(number, clock.mark()),
        lambda number: backward.__setitem__(number, clock.mark()),
    )
    clock.settle()
    count = len(layers)
    ends = [backward.get(number - 1, backward[-1]) for number in range(count)]
    return (
        [clock.between(forward[number - 1], forward[number]) for number in range(count)],
        # A layer that returns its very input shares one tensor, and the order of its two marks, with its neighbour.
        [max(0, clock.between(backward[n], ends[n])) if n in backward else 0 for n in range(count)],
    )


def time_split(layers: Sequence[nn.Module], feed: Feed, clock: Clock) -> tuple[list[int | None], list[int | None]]:
    """Nanoseconds of each layer's input gradient and weight gradient, by torch's own engine.

    One call makes the input gradients of the whole row. Before it computes, it searches the graph for what the weight
    gradients will need; that time is shared among the layers by their number of parameter tensors. The weight
    gradients follow, layer by layer, as the engine takes them group by group.

    A first layer whose input needs no gradient has no split: its entries are None.
    """
    count = len(layers)
    first = 0 if feed.wants_gradient else 1
    value = feed.leaf().detach()
    with torch.no_grad():
        for layer in layers[:first]:
            value = layer(value)
    nothing: list[int | None] = [None] * count
    if first == count or not value.is_floating_point():
        return nothing, nothing

    leaf = value.detach().requires_grad_()
    ready: dict[int, Any] = {}

    def note(number: int) -> None:
        if number not in ready:  # the weight gradients wake the same hooks again
            ready[number] = clock.mark()

    value = leaf
    for number in range(first, count):
        value = run_layer(layers[number], value)
        if number < count - 1 or feed.loss is None:
            value.register_hook(lambda _gradient, number=number: note(number))
    if feed.loss is None:
        output = value.clone()  # a view, or an output that its own layer saved, could not be detached by the engine
        gradients = [torch.ones_like(output)]
    else:
        output, gradients = feed.loss(value, feed.targets), None
        output.register_hook(lambda _gradient: note(count - 1))

    owners = {_gradient_node(p): n for n in range(first, count) for p in _trainable(layers[n])}
    begin = clock.mark()
    groups = _input_gradients(output, gradients, leaf, [p for layer in layers[first:] for p in _trainable(layer)])
    end = clock.mark()
    own_groups: list[list[Any]] = [[] for _ in layers]
    for group in groups:
        own_groups[owners[next(iter(group["params"]))]].append(group)
    weight_marks: dict[int, tuple[Any, Any]] = {}
    for number in reversed(range(first, count)):
        start = clock.mark()
        stage_backward_weight(iter(_trainable(layers[number])), own_groups[number])
        weight_marks[number] = (start, clock.mark())
    clock.settle()

    search = clock.between(begin, ready[count - 1])
    inputs, weights = list(nothing), list(nothing)
    for number in range(first, count):
        share = search * len(_trainable(layers[number])) // max(1, len(owners))
        after = ready[number - 1] if number > first else end
        inputs[number] = max(0, clock.between(ready[number], after)) + share
        weights[number] = clock.between(*weight_marks[number]) if own_groups[number] else 0
    return inputs, weights


def _input_gradients(
    output: torch.Tensor, gradients: list[torch.Tensor] | None, leaf: torch.Tensor, parameters: list[nn.Parameter]
) -> Any:
    try:
        return stage_backward_input([output], gradients, [leaf], iter(parameters))[1]
    except RuntimeError as error:
        raise InputError(f"torch's engine cannot split this model's backward pass: {error}") from error


def _gradient_node(parameter: nn.Parameter) -> Any:
    """The node of the graph that adds up the parameter's gradient."""
    return parameter.view_as(parameter).grad_fn.next_functions[0][0]


def run_layer(layer: nn.Module, value: torch.Tensor) -> torch.Tensor:
    """The layer's output. The start of a graph is copied for a layer that would write into it, as a stage must do."""
    try:
        return layer(value)
    except RuntimeError:
        if not (value.is_leaf and value.requires_grad):
            raise
        return layer(value.clone())


def _trainable(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]
