"""One timed pass over a sequence of layers, as in a pipeline stage: with joined backward, or split backward.

::

    mark  0        1        2        3        forward: layer i lies between mark i and mark i + 1
          │ layer0 │ layer1 │ layer2 │ loss
          ▼        ▼        ▼        ▼
    back  3        2        1        0        backward runs the other way; a hook on each layer's outputs marks the
                                              moment its backward begins, inside one call of autograd

In mixed precision (`autocast`) weights keep their format, and matrix products run in 16 bits.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.choices import known
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.profile.meter import Clock
from pipeplan.frontend.split_backward.attach import attached
from pipeplan.frontend.split_backward.queue import WeightQueue, run_delayed

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""16-bit formats by their names in options. Only gradients in fp16 have to be scaled."""


def autocast(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """Context of mixed precision for a forward and its loss; None changes nothing.

    Raises
    ------
    InputError
        If there is no such precision.
    """
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, FORMATS[known(precision, "precision", FORMATS)])  # type: ignore[no-any-return]


Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Feed:
    """Inputs of a sequence of layers, with flags for the tensors that need a gradient, and the loss.

    ``loss`` takes the outputs of the last layer, and ``targets``. It is None if other layers follow; backward then
    starts from gradients of ones. ``precision`` is that of forward and loss (see `autocast`).
    """

    inputs: tuple[Tensor, ...]
    wanted: tuple[bool, ...]
    loss: Loss | None = None
    targets: Any = None
    precision: str | None = None

    def cast(self) -> AbstractContextManager[object]:
        """Context of mixed precision for a forward and the loss."""
        return autocast(self.precision, self.inputs[0].device)

    def leaves(self) -> tuple[Tensor, ...]:
        """The batch as leaves of a new graph, sharing its memory."""
        return leaves(self.inputs, self.wanted)


def leaves(values: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """The tensors as leaves of a new graph; those wanted and of floating point require a gradient."""
    found = tuple(value.detach() for value in values)
    return tuple(v.requires_grad_(want and v.is_floating_point()) for v, want in zip(found, wanted, strict=True))


def run_pass(
    layers: Sequence[nn.Module],
    feed: Feed,
    mark_forward: Callable[[int], None],
    mark_backward: Callable[[int], None],
) -> None:
    """Run all layers forward, the loss, and the backward.

    ``mark_forward(i)`` is called when layer i ends (−1 before the first); the loss counts with the last layer.
    ``mark_backward(i)`` is called when the backward of layer i begins, ``mark_backward(-1)`` when all is done. A layer
    without outputs that need a gradient gets no mark. Autograd runs backward in the reverse order of creation, so that
    the backwards of two layers do not mix.
    """
    last = len(layers) - 1
    begun = set(range(len(layers)))  # gradients that a layer takes in its forward begin nothing

    def begin(number: int) -> None:
        if number not in begun:
            begun.add(number)
            mark_backward(number)

    # forward: hooks on each layer's outputs will mark the moment at which its backward begins
    values, returned = feed.leaves(), None
    with feed.cast():
        mark_forward(-1)
        for number, layer in enumerate(layers):
            given = _made_by(values)
            returned = run_layer(layer, values)
            values = tensors(returned)
            if number < last:
                _on_gradient(values, given, partial(begin, number))
                mark_forward(number)
        if feed.loss is not None:
            values, returned = (feed.loss(returned, feed.targets),), None
        mark_forward(last)
    # backward: from the loss, or from gradients of ones
    roots = [value for value in values if value.requires_grad]
    if roots:
        begun.intersection_update({last})
        mark_backward(last)
        torch.autograd.backward(roots, [None if feed.loss is not None else torch.ones_like(root) for root in roots])
    mark_backward(-1)


def _made_by(values: Sequence[Tensor]) -> list[tuple[Any, int]]:
    """For each tensor, the graph node that made it and the number of the result."""
    return [(value.grad_fn, value.output_nr) for value in values]


def _on_gradient(values: Sequence[Tensor], given: Sequence[tuple[Any, int]], call: Callable[[], None]) -> None:
    """Call ``call`` when the gradient of one of a layer's outputs exists, except outputs that the layer was given."""
    for value, made in zip(values, _made_by(values), strict=True):
        if value.grad_fn is not None and made not in given:
            value.register_hook(lambda _gradient: call())


def time_joined(layers: Sequence[nn.Module], feed: Feed, clock: Clock) -> tuple[list[int], list[int]]:
    """Nanoseconds of each layer's forward and joined backward."""
    forward: list[Any] = []
    backward: dict[int, Any] = {}
    run_pass(
        layers,
        feed,
        lambda _: forward.append(clock.mark()),
        lambda number: backward.__setitem__(number, clock.mark()),
    )
    clock.settle()
    return [clock.between(*pair) for pair in pairwise(forward)], _between(backward, len(layers), clock)


def time_split(layers: Sequence[nn.Module], feed: Feed, clock: Clock) -> tuple[list[int], list[int]]:
    """Nanoseconds of each layer's I and W, by the same code that a pipeline runs (see `frontend.split_backward`)."""
    queue = WeightQueue()
    backward: dict[int, Any] = {}
    left: dict[int, int] = {}

    def begin(number: int) -> None:
        left[number] = len(queue)
        backward[number] = clock.mark()

    with attached(queue, layers):
        with queue.opened():
            run_pass(layers, feed, lambda _: None, begin)
        works = queue.take()
    weights = [0] * len(layers)
    marks: dict[int, tuple[Any, Any]] = {}
    for number, after in pairwise(sorted(left, reverse=True)):
        if left[number] < left[after]:
            start = clock.mark()
            run_delayed(works[left[number] : left[after]])
            marks[number] = start, clock.mark()
    clock.settle()
    for number, pair in marks.items():
        weights[number] = clock.between(*pair)
    return _between(backward, len(layers), clock), weights


def _between(marks: dict[int, Any], count: int, clock: Clock) -> list[int]:
    """Nanoseconds between the mark of each layer and the next mark; 0 for layers without a mark."""
    times = [0] * count
    for number, after in pairwise(sorted(marks, reverse=True)):
        times[number] = clock.between(marks[number], marks[after])
    return times


def run_layer(layer: nn.Module, values: Sequence[Tensor]) -> Any:
    """Result of the layer. Leaves of a graph are copied if the layer writes into them, as a stage must do."""
    try:
        return layer(*values)
    except RuntimeError:
        if not any(value.is_leaf and value.requires_grad for value in values):
            raise
        return layer(*(value.clone() for value in values))
