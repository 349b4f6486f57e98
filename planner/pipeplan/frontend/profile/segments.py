"""`measured_costs`: costs of layers in several passes (micro-batch sizes, slices), all layers at once or each alone."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn

from pipeplan.core.model import LayerCost
from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.profile.feed import on_device
from pipeplan.frontend.profile.measure import Measured, Segment, measure
from pipeplan.frontend.profile.meter import clock_for
from pipeplan.frontend.profile.passes import Feed, Loss
from pipeplan.frontend.profile.request import Request
from pipeplan.frontend.profile.saved import PassedTensors


@dataclass(frozen=True)
class MeasuredPass:
    """Layers, their batch and loss, and what to call this pass while it is measured."""

    name: str
    sequence: LayerSequence
    inputs: Batch
    targets: Any
    loss: Loss | None


def measured_costs(
    passes: Mapping[int, MeasuredPass],
    device: torch.device,
    whole: bool,
    elsewhere: Sequence[Set[str]],
    request: Request,
    on_progress: Callable[[str], None],
    see: Callable[[Segment], None] = lambda _: None,
) -> dict[int, tuple[LayerCost, ...]]:
    """Measure all layers at once, or each alone; return their costs in every pass.

    Parameters
    ----------
    passes : mapping of int to MeasuredPass
        By micro-batch size, or another number; layers have the same names in all of them.
    whole : bool
        The layers are on the device.
    see : callable
        Called with each segment while its layers are on the device.
    """
    names = next(iter(passes.values())).sequence.names
    segments = [range(len(names))] if whole else [range(n, n + 1) for n in range(len(names))]
    total, done = len(segments) * len(passes) * (request.repeats + request.warmup), count(1)
    clock = clock_for(device, request.threads)
    flowing = {key: tensors(each.inputs) for key, each in passes.items()}  # inputs of the next segment
    joints = {key: PassedTensors(given) for key, given in flowing.items()}
    parts: list[Measured] = []
    for numbers in segments:
        text = "all layers" if whole else names[numbers[0]]

        def tick(key: int, detail: str, text: str = text) -> None:
            on_progress(f"{next(done)}/{total}  {text}: {detail}, {passes[key].name}")

        segment = _segment(numbers, passes, flowing, elsewhere, request.precision)
        with on_device(nn.ModuleList(layer for layers in segment.layers.values() for layer in layers), device):
            measured = measure(
                segment,
                clock=clock,
                device=device,
                repeats=request.repeats,
                warmup=request.warmup,
                optimizer=request.optimizer,
                crowd=request.crowd,
                tick=tick,
            )
            see(segment)
        for key, held in measured.bytes.items():
            joints[key].follow(held)
            flowing[key] = held.outputs
        parts.append(measured)
    return {key: joints[key].settle([part.costs[key] for part in parts]) for key in passes}


def _segment(
    numbers: range,
    passes: Mapping[int, MeasuredPass],
    flowing: Mapping[int, tuple[torch.Tensor, ...]],
    elsewhere: Sequence[Set[str]],
    precision: str | None,
) -> Segment:
    """The layers of these numbers in every pass, and what flows into them; the last one has the loss."""
    feeds = {
        key: Feed(
            flowing[key],
            tuple(tensor.requires_grad for tensor in flowing[key]),
            each.loss if numbers[-1] == len(each.sequence.names) - 1 else None,
            each.targets,
            precision,
        )
        for key, each in passes.items()
    }
    layers = {key: tuple(each.sequence.layers[n] for n in numbers) for key, each in passes.items()}
    return Segment(layers, feeds, tuple(elsewhere[n] for n in numbers))
