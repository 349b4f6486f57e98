"""Measures the layers that are in memory at once: all of them, or one."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from pipeplan.model import LayerCost
from pipeplan.profile.clock import Clock
from pipeplan.profile.crowd import busy_siblings
from pipeplan.profile.passes import Feed, time_joined, time_split
from pipeplan.profile.saved import SavedBytes, saved_bytes
from pipeplan.profile.update import update_times
from pipeplan.profile.workspace import workspace_bytes


@dataclass(frozen=True)
class Segment:
    """A row of layers in memory, and what feeds it at each micro-batch size.

    ``first`` says that the model begins here: the first layer then has no input gradient. ``elsewhere`` names, for each
    layer, parameters that count with an earlier one.
    """

    names: tuple[str, ...]
    layers: tuple[nn.Module, ...]
    feeds: Mapping[int, Feed]
    first: bool
    elsewhere: tuple[Set[str], ...]


@dataclass(frozen=True)
class Measured:
    """Per micro-batch size: one cost a layer, the bytes behind it, and the last layer's output."""

    costs: Mapping[int, tuple[LayerCost, ...]]
    bytes: Mapping[int, SavedBytes]
    outputs: Mapping[int, torch.Tensor]


def measure(
    segment: Segment,
    *,
    clock: Clock,
    device: torch.device,
    repeats: int,
    warmup: int,
    optimizer: str,
    crowd: int,
    tick: Callable[[str], None],
) -> Measured:
    """Times are medians over ``repeats`` rounds; each round passes once over every size, so that drift hits all alike.

    Gradients are there from the first round on: as in every micro-batch of a step but the first, backward adds.
    """
    sizes = tuple(segment.feeds)
    times: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    busy = busy_siblings(crowd - 1, segment.layers, segment.feeds[max(sizes)])
    with busy, _no_collection():
        for round_number in range(warmup + repeats):
            for size in sizes:
                for what, row in _round(segment, segment.feeds[size], clock):
                    for number, value in enumerate(row):
                        if round_number >= warmup:
                            times[size, what, number].append(value)
                tick(f"round {round_number + 1} of {warmup + repeats}, {size} samples")
        updates = update_times(segment.layers, segment.elsewhere, optimizer, clock, repeats, warmup)
    held = {size: saved_bytes(segment.layers, segment.feeds[size]) for size in sizes}
    spaces = {size: workspace_bytes(segment.layers, segment.feeds[size], held[size][0].saved, device) for size in sizes}
    costs = {
        size: tuple(
            LayerCost(
                forward=_middle(times[size, "forward", number]),
                backward=_middle(times[size, "backward", number]),
                input_gradient=_middle(times[size, "input_gradient", number]),
                weight_gradient=_middle(times[size, "weight_gradient", number]),
                saved=held[size][0].saved[number],
                output=held[size][0].output[number],
                workspace=spaces[size][number],
                update=updates[number],
            )
            for number in range(len(segment.layers))
        )
        for size in sizes
    }
    return Measured(costs, {s: held[s][0] for s in sizes}, {s: held[s][1] for s in sizes})


def _round(segment: Segment, feed: Feed, clock: Clock) -> Iterator[tuple[str, Sequence[int]]]:
    forward, backward = time_joined(segment.layers, feed, clock)
    inputs, weights = time_split(segment.layers, feed, clock)
    yield "forward", forward
    yield "backward", backward
    pairs = [
        _split(layer, segment.first and number == 0, backward[number], inputs[number], weights[number])
        for number, layer in enumerate(segment.layers)
    ]
    yield "input_gradient", [pair[0] for pair in pairs]
    yield "weight_gradient", [pair[1] for pair in pairs]


def _split(layer: nn.Module, first: bool, backward: int, inputs: int | None, weights: int | None) -> tuple[int, int]:
    """Input and weight gradient of a layer. The model's first has no input gradient, as in torch's engine."""
    if first:
        return 0, backward
    if inputs is None or weights is None or not any(p.requires_grad for p in layer.parameters()):
        return backward, 0
    return inputs, weights


def _middle(values: Sequence[int]) -> int:
    return round(median(values))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector must not run inside a measured pass."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
