"""Wiring of a profile: find the layers, measure them segment by segment, put the model together."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pipeplan.errors import InputError
from pipeplan.job import OPTIMIZER_STATE
from pipeplan.model import Layer, LayerCost, Model, Profile
from pipeplan.profile import Progress
from pipeplan.profile.batches import batch_of
from pipeplan.profile.clock import clock_for
from pipeplan.profile.layers import find_layers
from pipeplan.profile.measure import Measured, Segment, measure
from pipeplan.profile.passes import Feed, Loss
from pipeplan.profile.presence import lies_on, present, preserved
from pipeplan.profile.provenance import device_label, provenance
from pipeplan.profile.ties import bytes_of, find_ties, held_by, own_parameters, shared_parameters
from pipeplan.profile.work import work_of


@dataclass(frozen=True)
class Request:
    """How to measure; the fields are the arguments of `pipeplan.profile.profile`."""

    micro_batches: tuple[int, ...]
    repeats: int
    warmup: int
    optimizer: str
    device: str
    device_name: str | None
    threads: int
    crowd: int
    name: str | None
    loss: Loss | None
    group: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.micro_batches or min(self.micro_batches) < 1:
            raise InputError(f"micro_batches must be sizes of at least one sample, not {self.micro_batches}")
        if self.repeats < 1 or self.warmup < 0:
            raise InputError(f"at least 1 repeat and 0 warm-ups are needed, not {self.repeats} and {self.warmup}")
        if self.optimizer not in OPTIMIZER_STATE:
            raise InputError(f"optimizer {self.optimizer!r} is not known; choose from {', '.join(OPTIMIZER_STATE)}")
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device {self.device!r} cannot be measured; choose cpu or cuda")
        if self.crowd < 1 or (self.crowd > 1 and self.device != "cpu"):
            raise InputError(f"crowd counts the workers of a CPU, this one included; {self.crowd} makes no sense here")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("no CUDA device is at hand; measure on cpu, or use a catalogued device's estimate")


def run(module: nn.Module, example_inputs: Any, targets: Any, request: Request, progress: Progress) -> Model:
    """See `pipeplan.profile.profile`."""
    device = torch.device(request.device)
    sizes = tuple(sorted(set(request.micro_batches)))
    batches = {size: batch_of(example_inputs, targets, size, device) for size in sizes}
    threads = torch.get_num_threads()
    torch.set_num_threads(request.threads)
    try:
        with preserved(module):
            return _profile(module, batches, device, request, progress)
    finally:
        torch.set_num_threads(threads)


def _profile(
    module: nn.Module, batches: dict[int, tuple[Any, Any]], device: torch.device, request: Request, progress: Progress
) -> Model:
    smallest = min(batches)
    own_device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), device)
    names = find_layers(module, batches[smallest][0].to(own_device), group=request.group)
    layers = tuple(module.get_submodule(name) for name in names)
    whole = lies_on(module, device)
    held = held_by(module, names)
    elsewhere: dict[str, frozenset[str]] = {}
    for holders in shared_parameters(module, held):
        for number, name in holders[1:]:
            inner = next(local for local, full in held[number].items() if full == name)
            elsewhere[names[number]] = elsewhere.get(names[number], frozenset()) | {inner}
    groups = [range(len(layers))] if whole else [range(n, n + 1) for n in range(len(layers))]
    total = len(groups) * len(batches) * (request.repeats + request.warmup)
    done = 0
    clock = clock_for(device, request.threads)
    flowing = {size: inputs for size, (inputs, _) in batches.items()}
    parts: list[Measured] = []
    work = []
    for numbers in groups:
        row = nn.ModuleList(layers[n] for n in numbers)
        text = "all layers" if whole else names[numbers[0]]

        def tick(detail: str, text: str = text) -> None:
            nonlocal done
            done += 1
            progress(f"{done}/{total}  {text}: {detail}")

        last = numbers[-1] == len(layers) - 1
        feeds = {
            size: Feed(flowing[size], numbers[0] > 0, request.loss if last else None, batches[size][1])
            for size in batches
        }
        counted = tuple(elsewhere.get(names[n], frozenset()) for n in numbers)
        segment = Segment(tuple(names[n] for n in numbers), tuple(row), feeds, numbers[0] == 0, counted)
        with present(row, device):
            parts.append(
                measure(
                    segment,
                    clock=clock,
                    device=device,
                    repeats=request.repeats,
                    warmup=request.warmup,
                    optimizer=request.optimizer,
                    crowd=request.crowd,
                    tick=tick,
                )
            )
            work += work_of(segment, smallest)
        flowing = dict(parts[-1].outputs)

    costs = {size: _join(parts, size) for size in batches}
    kind = request.device_name or device_label(device)
    origin = provenance(device, request.threads, request.crowd)
    parameters = [bytes_of(own) for own in own_parameters(module, held)]
    return Model(
        name=request.name or type(module).__name__.lower(),
        layers=tuple(
            Layer(
                name=name,
                parameters=parameters[n],
                inputs=(names[n - 1],) if n else (),
                work=replace(work[n], saved=costs[smallest][n].saved // smallest),
                kind=type(layers[n]).__name__,
            )
            for n, name in enumerate(names)
        ),
        profiles=tuple(Profile(kind, size, costs[size], origin) for size in costs),
        dtype=_dtype(module),
        notes=(f"update: one step of {request.optimizer}",) + (("the loss is in the last layer",) * bool(request.loss)),
        ties=find_ties(module, names, held),
    )


def _join(parts: list[Measured], size: int) -> tuple[LayerCost, ...]:
    """Costs of all segments in a row; an input that a segment saves belongs to the layer before it."""
    row: list[LayerCost] = []
    for part in parts:
        held = part.bytes[size]
        costs = list(part.costs[size])
        if row:
            before = row[-1]
            if not held.input_saved:
                costs[0] = replace(costs[0], workspace=costs[0].workspace + before.output)
            elif parts[len(row) - 1].bytes[size].loose[-1]:
                row[-1] = replace(before, saved=before.saved + before.output)
        row += costs
    return tuple(row)


def _dtype(module: nn.Module) -> str:
    formats = [str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()]
    return max(set(formats), key=formats.count, default="float32")
