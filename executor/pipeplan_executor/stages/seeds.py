"""Seeds for weights, batches, and the random numbers that layers draw in training, all derived from one.

A layer's random numbers depend only on the seed, the step, the micro-batch and the layer's place in the model. So
dropout masks are the same for all boundaries, orders, numbers of replicas and sets of recomputed layers, and in the
unsplit model.

::

    seed ─┬─ module ──────────────────────── weights       pipeplan_executor.stages.materialise
          ├─ step ────────────────────────── batches       of `pipeplan_executor.run`
          ╰─ step ── micro-batch ── layer ── dropout       here
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pipeplan.frontend.rewind import preserved_numbers


@dataclass
class Moment:
    """Position of a process in training.

    Attributes
    ----------
    seed : int
    step : int
        Number of batches before this one, with or without an update.
    micro_batch : int
        Number within the batch.
    """

    seed: int = 0
    step: int = 0
    micro_batch: int = 0


def derive(seed: int, *path: object) -> int:
    """Return a seed below 2**63 for one use of ``seed``; the path names the use."""
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_layers(layers: Iterable[tuple[int, nn.Module]], moment: Moment) -> list[RemovableHandle]:
    """Seed the generators before every forward of these layers in training, recomputed forwards included.

    Parameters
    ----------
    layers : iterable of (int, torch.nn.Module)
        Place in the model, and layer.
    moment : Moment
        Updated by the caller before forwards and backwards.
    """
    return [layer.register_forward_pre_hook(_seeder(number, moment)) for number, layer in layers]


def same_draws(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a loss that draws the same random numbers at each call, and leaves the random state as it was."""

    def called(outputs: Any, targets: Any) -> Any:
        with torch.random.fork_rng(), preserved_numbers():
            torch.manual_seed(0)
            random.seed(0)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(0)
            return loss(outputs, targets)

    return called


def _seeder(number: int, moment: Moment) -> Callable[[nn.Module, Any], None]:
    def seed(layer: nn.Module, _: Any) -> None:
        if not layer.training:
            return
        value = derive(moment.seed, "layer", moment.step, moment.micro_batch, number)
        torch.default_generator.manual_seed(value)  # torch.manual_seed takes a hundred times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(value)
        random.seed(value)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(value % 2**32)

    return seed


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Context that restores the random state of the process at its end, those of Python and numpy too."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), preserved_numbers():
        yield


@contextmanager
def seeded(layers: Sequence[nn.Module], seed: int = 0) -> Iterator[Moment]:
    """Context in which the layers of an unsplit model draw the same numbers as in a `Pipeline` with the same seed.

    Parameters
    ----------
    layers : sequence of torch.nn.Module
        All layers that plans divide into stages, in order.

    Yields
    ------
    Moment
        Set its ``step`` and ``micro_batch`` before each forward.

    Examples
    --------
    >>> with seeded(list(model), seed=0) as moment:                                  # doctest: +SKIP
    ...     for moment.step, (inputs, targets) in enumerate(batches):
    ...         for moment.micro_batch, part in enumerate(inputs.split(plan.micro_batch)):
    ...             model(part)
    """
    moment = Moment(seed)
    handles = seed_layers(enumerate(layers), moment)
    try:
        with torch.random.fork_rng(), preserved_numbers():
            yield moment
    finally:
        for handle in handles:
            handle.remove()
