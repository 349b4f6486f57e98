"""One seed for everything: weights, batches, and the random numbers that layers draw while they train.

What a layer draws depends on the seed, the step, the micro-batch and the layer's place in the model only. So the masks
of dropout are the same for every cut, order, number of replicas and set of recomputed layers, and in the unsplit model.

::

    seed ─┬─ module ──────────────────────── weights       pipeplan_executor.stages.materialise
          ├─ step ────────────────────────── batches       of `pipeplan_executor.run`
          ╰─ step ── micro-batch ── layer ── dropout       here
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


@dataclass
class Moment:
    """Where in training a process is.

    Attributes
    ----------
    seed : int
    step : int
        How many batches came before, whether or not they led to an update.
    micro_batch : int
        Place in the batch.
    """

    seed: int = 0
    step: int = 0
    micro_batch: int = 0


def derive(seed: int, *path: object) -> int:
    """A seed below 2**63 for one of the uses of ``seed``, which the path names."""
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_layers(layers: Iterable[tuple[int, nn.Module]], moment: Moment) -> list[RemovableHandle]:
    """Seed ahead of every forward of these layers in training, that of a recomputation too.

    Parameters
    ----------
    layers : iterable of (int, torch.nn.Module)
        Place in the model, and layer.
    moment : Moment
        Kept up to date by whoever runs the layers, ahead of forwards and backwards.
    """
    return [layer.register_forward_pre_hook(_seeder(number, moment)) for number, layer in layers]


def _seeder(number: int, moment: Moment) -> Callable[[nn.Module, Any], None]:
    def seed(layer: nn.Module, _: Any) -> None:
        if not layer.training:
            return
        value = derive(moment.seed, "layer", moment.step, moment.micro_batch, number)
        torch.default_generator.manual_seed(value)  # torch.manual_seed takes a hundred times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(value)

    return seed


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Give the process its own random numbers back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def seeded(layers: Sequence[nn.Module], seed: int = 0) -> Iterator[Moment]:
    """Let the layers of an unsplit model draw what they draw in a `Pipeline` that has the same seed.

    Parameters
    ----------
    layers : sequence of torch.nn.Module
        All layers of the row that plans cut, in order.

    Yields
    ------
    Moment
        Set its ``step`` and ``micro_batch`` ahead of each forward.

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
        with torch.random.fork_rng():
            yield moment
    finally:
        for handle in handles:
            handle.remove()
