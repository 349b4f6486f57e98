"""Measures the layers that are in memory at once: all of them, or one."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from pipeplan.core.model import LayerCost
from pipeplan.frontend.profile.clock import Clock
from pipeplan.frontend.profile.crowd import busy_siblings
from pipeplan.frontend.profile.passes import Feed, time_joined, time_split
from pipeplan.frontend.profile.saved import SavedBytes, saved_bytes
from pipeplan.frontend.profile.update import update_times
from pipeplan.frontend.profile.workspace import workspace_bytes


@dataclass(frozen=True)
class Segment:
    """Layers in memory, and what feeds them, at each micro-batch size.

    A captured graph is one for its size; its layers hold the same parameters at every size. ``elsewhere`` names, for
    each layer, parameters that count with an earlier one.
    """

    rows: Mapping[int, tuple[nn.Module, ...]]
    feeds: Mapping[int, Feed]
    elsewhere: tuple[Set[str], ...]


@dataclass(frozen=True)
class Measured:
    """Per micro-batch size: one cost a layer, and the bytes behind it."""

    costs: Mapping[int, tuple[LayerCost, ...]]
    bytes: Mapping[int, SavedBytes]


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
    largest = max(sizes)
    with busy_siblings(crowd - 1, segment.rows[largest], segment.feeds[largest]), _no_collection():
        for round_number in range(warmup + repeats):
            for size in sizes:
                for what, row in _round(segment.rows[size], segment.feeds[size], clock):
                    for number, value in enumerate(row):
                        if round_number >= warmup:
                            times[size, what, number].append(value)
                tick(f"round {round_number + 1} of {warmup + repeats}, {size} samples")
        updates = update_times(segment.rows[largest], segment.elsewhere, optimizer, clock, repeats, warmup)
    held = {size: saved_bytes(segment.rows[size], segment.feeds[size]) for size in sizes}
    spaces = {
        size: workspace_bytes(segment.rows[size], segment.feeds[size], held[size].saved, device) for size in sizes
    }
    costs = {
        size: tuple(
            LayerCost(
                **{what: _middle(times[size, what, number]) for what in _TIMES},
                saved=held[size].saved[number],
                output=held[size].output[number],
                workspace=spaces[size][number],
                update=updates[number],
            )
            for number in range(len(segment.rows[size]))
        )
        for size in sizes
    }
    return Measured(costs, held)


_TIMES = ("forward", "backward", "input_gradient", "weight_gradient")


def _round(layers: Sequence[nn.Module], feed: Feed, clock: Clock) -> Iterator[tuple[str, Sequence[int]]]:
    """A joined pass and a split one."""
    yield from zip(_TIMES, (*time_joined(layers, feed, clock), *time_split(layers, feed, clock)), strict=True)


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
