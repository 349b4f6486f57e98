"""Measurement of the layers that are in memory at once (all of them, or one), with their optimiser steps.

Other workers of a machine compete for its memory and caches, so a layer may be measured beside background workers
(`background_workers`). On a 2-core machine a second process with the same passes slowed forward by 3 to 7 % and
backward by 2 to 20 %, most if gradients are large: both processes then stream them through one memory.
"""

import gc
import multiprocessing
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from pipeplan.core.collector import without_collector
from pipeplan.core.errors import PipeplanError
from pipeplan.core.model import LayerCost
from pipeplan.frontend.optimizers import build_optimizer
from pipeplan.frontend.profile.meter import Clock
from pipeplan.frontend.profile.passes import Feed, run_pass, time_joined, time_split
from pipeplan.frontend.profile.saved import SavedBytes, saved_bytes, workspace_bytes


def update_times(
    layers: Sequence[nn.Module],
    elsewhere: Sequence[Set[str]],
    optimizer: str,
    clock: Clock,
    repeats: int,
    warmup: int,
) -> list[int]:
    """Median nanoseconds of each layer's optimiser step and clearing of gradients.

    Parameters named in ``elsewhere`` are left out. All layers take their step in turn, on their own parameters, so that
    these come from memory as in training. The learning rate is zero and the gradients are finite: the arithmetic is
    that of a step, and no weight changes.
    """
    steppers: list[Any] = []
    for layer, left_out in zip(layers, elsewhere, strict=True):
        named = layer.named_parameters()
        parameters = [parameter for name, parameter in named if parameter.requires_grad and name not in left_out]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.01)
        steppers.append(build_optimizer(optimizer, parameters, 0.0) if parameters else None)
    times: list[list[int]] = [[] for _ in layers]
    for number in range(warmup + repeats):
        marks = []
        clock.lead()
        for stepper in steppers:
            start = clock.mark()
            if stepper is not None:
                stepper.step()
                stepper.zero_grad(set_to_none=False)
            marks.append((start, clock.mark()))
        clock.settle()
        if number >= warmup:
            for row, (start, end) in zip(times, marks, strict=True):
                row.append(clock.between(start, end))
    return [0 if stepper is None else round(median(row)) for stepper, row in zip(steppers, times, strict=True)]


PATIENCE = 120.0
"""Seconds to wait for the first pass of a background worker."""


@contextmanager
def background_workers(count: int, layers: Sequence[nn.Module], feed: Feed) -> Iterator[None]:
    """Context in which ``count`` background workers run the same layers repeatedly.

    They are forked, so that they share the parameters; each has its own gradients and activations.
    """
    if count == 0:
        yield
        return
    context = multiprocessing.get_context("fork")
    started = [context.Event() for _ in range(count)]
    siblings = [
        context.Process(target=_work, args=(layers, feed, event, os.getpid()), daemon=True) for event in started
    ]
    try:
        for sibling in siblings:
            sibling.start()
        for sibling, event in zip(siblings, started, strict=True):
            _await(sibling, event)
        yield
    finally:
        for sibling in siblings:
            sibling.kill()
            sibling.join()


def _await(sibling: Any, started: Any) -> None:
    """Wait for the first pass of a background worker."""
    end = time.monotonic() + PATIENCE
    while not started.wait(0.2):
        if not sibling.is_alive():
            raise PipeplanError(
                "a busy sibling ended before its first pass; profile in a process that has run no backward before "
                "(pipeplan profile, or profile_workload), or with crowd=1"
            )
        if time.monotonic() > end:
            raise PipeplanError(f"a busy sibling made no pass within {PATIENCE:.0f} s; profile with crowd=1")


def _work(layers: Sequence[nn.Module], feed: Feed, started: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the measuring process handles Ctrl-C
    while os.getppid() == parent:  # a worker without its parent stops
        run_pass(layers, feed, _ignore, _ignore)
        started.set()


def _ignore(_number: int) -> None:
    pass


@dataclass(frozen=True)
class Segment:
    """Layers in memory, and their inputs, at each micro-batch size, or for each slice of sequences.

    A captured graph holds for one size only; its layers share the same parameters at every size. ``elsewhere`` names,
    for each layer, the parameters that count with an earlier one.
    """

    layers: Mapping[int, tuple[nn.Module, ...]]
    feeds: Mapping[int, Feed]
    elsewhere: tuple[Set[str], ...]


@dataclass(frozen=True)
class Measured:
    """Costs and saved bytes of every layer, per micro-batch size."""

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
    tick: Callable[[int, str], None],
) -> Measured:
    """Measure the costs of the segment's layers at every size. ``tick`` is called with a size and what was done.

    Times are medians over ``repeats`` rounds. Each round runs every size once, so that drift affects all sizes equally.
    Gradients exist from the first round on: backward adds to them, as in every micro-batch of a step except the first.
    """
    sizes = tuple(segment.feeds)
    times: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    largest = max(sizes)
    with background_workers(crowd - 1, segment.layers[largest], segment.feeds[largest]), _no_collection():
        for round_number in range(warmup + repeats):
            for size in sizes:
                for what, row in _round(segment.layers[size], segment.feeds[size], clock):
                    for number, value in enumerate(row):
                        if round_number >= warmup:
                            times[size, what, number].append(value)
                tick(size, f"round {round_number + 1} of {warmup + repeats}")
        updates = update_times(segment.layers[largest], segment.elsewhere, optimizer, clock, repeats, warmup)
    # bytes are measured after all timed rounds, in passes of their own
    held = {size: saved_bytes(segment.layers[size], segment.feeds[size]) for size in sizes}
    spaces = {
        size: workspace_bytes(segment.layers[size], segment.feeds[size], held[size].saved, device) for size in sizes
    }
    costs = {
        size: tuple(
            LayerCost(
                **{what: _median(times[size, what, number]) for what in _TIMES},
                saved=held[size].saved[number],
                output=held[size].output[number],
                workspace=spaces[size][number],
                update=updates[number],
            )
            for number in range(len(segment.layers[size]))
        )
        for size in sizes
    }
    return Measured(costs, held)


_TIMES = ("forward", "backward", "input_gradient", "weight_gradient")


def _round(layers: Sequence[nn.Module], feed: Feed, clock: Clock) -> Iterator[tuple[str, Sequence[int]]]:
    """Time a joined pass and a split pass; yield names of times with their nanoseconds per layer.

    Where passes in a row take longer than the device does, as it waits for launches, all layers take so much longer.
    """
    clock.lead()
    joined = time_joined(layers, feed, clock)
    clock.lead()
    split = time_split(layers, feed, clock)
    pace, busy = clock.pace(lambda: run_pass(layers, feed, _ignore, _ignore)), sum(map(sum, joined))
    for what, row in zip(_TIMES, (*joined, *split), strict=True):
        yield what, [value * pace // busy for value in row] if pace > busy > 0 else row


def _median(values: Sequence[int]) -> int:
    return round(median(values))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Context without Python's garbage collector, which must not run inside a measured pass."""
    gc.collect()
    with without_collector():
        yield
