"""Profile of a module: find the layers, measure them segment by segment, build the model with its provenance."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pipeplan.core.errors import InputError
from pipeplan.core.machine import cpu_name
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Work
from pipeplan.core.wording import some
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.front_ends import capture_layers
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import on_meta
from pipeplan.frontend.operators.find import FoundOperators, find_operators
from pipeplan.frontend.parameters import bytes_of, find_ties, own_parameters, shared_parameters
from pipeplan.frontend.profile.allocator import allocator_here
from pipeplan.frontend.profile.blank_pass import BlankPass, with_workspaces
from pipeplan.frontend.profile.checks import changed_by_micro_batches, check_gradients
from pipeplan.frontend.profile.feed import batch_of, is_on, preserved
from pipeplan.frontend.profile.measure import Segment
from pipeplan.frontend.profile.passes import Loss, autocast
from pipeplan.frontend.profile.request import Request
from pipeplan.frontend.profile.segments import MeasuredPass, measured_costs
from pipeplan.frontend.profile.slices import slice_passes, with_slices
from pipeplan.frontend.profile.work import without_values, work_of
from pipeplan.frontend.runnable import refusals


def provenance(device: torch.device, threads: int, crowd: int = 1, precision: str | None = None) -> Provenance:
    """Provenance of the measured numbers: machine, device, versions and settings."""
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    if device.type == "cuda":
        source = str(torch.cuda.get_device_name())
        versions["cuda"] = str(torch.version.cuda)
    else:
        source = f"{cpu_name()}, {threads} thread{'s' * (threads != 1)}"
        source += f", {crowd} workers busy" * (crowd > 1) + f", {allocator_here()}"
    source += f", {precision}" if precision is not None else ""
    return Provenance("measured", source, datetime.now(UTC).strftime("%Y-%m-%d"), versions)


def device_label(device: torch.device) -> str:
    """Default name of the kind of device."""
    if device.type == "cpu":
        return "cpu-worker"
    return str(torch.cuda.get_device_name()).lower().replace("nvidia ", "").replace(" ", "-")


OnProgress = Callable[[str], None]
"""Called with a line of text as the measurement goes on."""

OnRefusal = Callable[[str], None]
"""Called with each reason why ``pipeplan run`` would refuse plans of the module."""


def run(
    module: nn.Module,
    example_inputs: Any,
    targets: Any,
    request: Request,
    on_progress: OnProgress,
    on_refusal: OnRefusal,
    on_note: OnRefusal,
) -> Model:
    """Measure the module; see `pipeplan.profile`. ``on_note`` is called with what the model leaves out."""
    device = torch.device(request.device)
    sizes = tuple(sorted(set(request.micro_batches)))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InputError(f"{name} has no shape yet; call the module with a batch before it is profiled")
    if device.type == "meta":
        batch = batch_of(example_inputs, targets, sizes[0], device)
        return _tell_uncounted(_described(module, *batch, request, on_refusal), on_note)
    batches = {size: batch_of(example_inputs, targets, size, device) for size in sizes}
    threads = torch.get_num_threads()
    torch.set_num_threads(request.threads)
    try:
        with preserved(module):
            model = _tell_uncounted(_profile(module, batches, device, request, on_progress, on_refusal), on_note)
            if request.loss is not None and is_on(module, device):
                several = batch_of(example_inputs, targets, 2 * sizes[0], device)
                changed = changed_by_micro_batches(module, several, sizes[0], request.loss, request.weight)
                if changed:
                    on_note(f"plans with several micro-batches train something else: {changed}")
            return model
    finally:
        torch.set_num_threads(threads)


def _profile(
    module: nn.Module,
    batches: dict[int, tuple[Any, Any]],
    device: torch.device,
    request: Request,
    on_progress: OnProgress,
    on_refusal: OnRefusal,
) -> Model:
    smallest = min(batches)
    sequences = _sequences(module, {size: inputs for size, (inputs, _) in batches.items()}, request)
    sequence = sequences[smallest]
    for reason in refusals(module, sequence, batches[smallest][0]):
        on_refusal(reason)
    whole = is_on(module, device)
    if whole:
        check_gradients(module, sequence, *batches[smallest], request.loss)
    elsewhere = _counted_elsewhere(module, sequence)
    parts = {
        size: MeasuredPass(f"{size} samples", sequences[size], inputs, wanted, _loss(request.loss, sequences[size]))
        for size, (inputs, wanted) in batches.items()
    }
    slices = slice_passes(module, parts, device, request) if request.slices else []
    counted: list[tuple[Work, tuple[torch.Tensor, ...]]] = []
    costs = measured_costs(
        parts, device, whole, elsewhere, request, on_progress, lambda own: counted.extend(work_of(own, smallest))
    )
    work, given = [own for own, _ in counted], [shapes for _, shapes in counted]
    operators = find_operators(
        module,
        sequence,
        given,
        smallest,
        partial(autocast, request.precision, torch.device("cpu")),
        _loss(request.loss, sequence),
        batches[smallest][1],
    )
    kind = request.device_name or device_label(device)
    origin = provenance(device, request.threads, request.crowd, request.precision)
    work = [replace(each, saved=costs[smallest][n].saved // smallest) for n, each in enumerate(work)]
    work = _workspaces(work, costs[smallest], sequence, batches[smallest], operators, request)
    notes = (f"update: one step of {request.optimizer}",)
    profiles = tuple(Profile(kind, size, costs[size], origin) for size in costs)
    model = _model(module, sequence, work, operators, profiles, notes, request)
    return with_slices(model, slices, device, whole, request, on_progress) if slices else model


def _described(module: nn.Module, inputs: Batch, targets: Any, request: Request, on_refusal: OnRefusal) -> Model:
    """The sizes and operations of the layers, from a pass on a CPU's tensors without values.

    On the meta device itself some operations are others than on a device that computes, such as attention.
    """
    blank, size = on_meta(module), request.micro_batches[0]
    sequence = capture_layers(blank, inputs, group=request.group, front_end=request.front_end, both_modes=False)
    for reason in refusals(module, sequence, inputs):
        on_refusal(reason)
    blanks = BlankPass(
        sequence.names, sequence.layers, inputs, targets, _loss(request.loss, sequence), request.precision
    )
    shapes = [tuple(map(without_values, values)) for values in blanks.reads]
    context = partial(autocast, request.precision, torch.device("cpu"))
    operators = find_operators(blank, sequence, shapes, size, context, blanks.feed.loss, targets)
    known: dict[tuple[str, int, int], Work] = {}
    work = []
    for n, layer in enumerate(blanks.layers):
        key = blanks.key_of(n, operators.names[n])
        if key not in known:
            with blanks.mode:
                ((counted, _),) = work_of(Segment({size: (layer,)}, {size: blanks.feed_of(n)}, (frozenset(),)), size)
            known[key] = blanks.with_workspace(replace(counted, saved=blanks.held.saved[n] // size), n, size)
        work.append(known[key])
    return _model(blank, sequence, work, operators, (), (), request)


def _workspaces(
    work: Sequence[Work],
    costs: Sequence[LayerCost],
    sequence: LayerSequence,
    batch: tuple[Any, Any],
    operators: FoundOperators,
    request: Request,
) -> list[Work]:
    """Add workspaces to measured layers' work, of a pass without values; measured ones where values are needed."""
    size = min(request.micro_batches)
    loss = _loss(request.loss, sequence)
    try:
        blanks = BlankPass(sequence.names, sequence.layers, *batch, loss, request.precision)
        return list(with_workspaces(work, blanks, operators.names, size))
    except Exception:  # a layer that needs values may fail in any way without them
        return [replace(each, workspace=-(-own.workspace // size)) for each, own in zip(work, costs, strict=True)]


def _model(
    module: nn.Module,
    sequence: LayerSequence,
    work: Sequence[Work],
    operators: FoundOperators,
    profiles: tuple[Profile, ...],
    notes: tuple[str, ...],
    request: Request,
) -> Model:
    parameters = [bytes_of(own) for own in own_parameters(module, sequence.parameters)]
    frozen = [bytes_of(own) for own in own_parameters(module, sequence.parameters, trained=False)]
    return Model(
        name=request.name or type(module).__name__.lower(),
        layers=tuple(
            Layer(
                name=name,
                parameters=parameters[n],
                inputs=(sequence.names[n - 1],) if n else (),
                work=work[n],
                kind=sequence.kinds[n],
                operators=operators.names[n],
                frozen=frozen[n],
            )
            for n, name in enumerate(sequence.names)
        ),
        profiles=profiles,
        dtype=_dtype(module),
        notes=notes + ("the loss is in the last layer",) * bool(request.loss),
        ties=find_ties(module, sequence.names, sequence.parameters),
        operators=operators.graphs,
    )


def _tell_uncounted(model: Model, tell: OnRefusal) -> Model:
    """Name the layers whose operations nobody can count; return the model."""
    by_operations: dict[tuple[str, ...], list[str]] = {}
    for name, operations in model.uncounted.items():
        by_operations.setdefault(operations, []).append(name)
    for operations, names in by_operations.items():
        tell(
            f"nothing is counted for {some(operations, 4)} in layer{'s' * (len(names) > 1)} {some(tuple(names), 4)}: "
            "estimates of their times, TFLOP/s and MFU are too small; register a formula with "
            "torch.utils.flop_counter.register_flop_formula"
        )
    return model


def _sequences(module: nn.Module, batches: dict[int, Batch], request: Request) -> dict[int, LayerSequence]:
    """The module as a sequence of layers, at every size; a chain is the same at all of them."""
    sequences: dict[int, LayerSequence] = {}
    for size, inputs in batches.items():
        sequence = capture_layers(
            module,
            inputs,
            group=request.group,
            front_end=request.front_end,
            both_modes=False,
            checks=not sequences,
        )
        for other, earlier in sequences.items():
            if earlier.names != sequence.names:
                raise InputError(
                    f"with {other} samples the model has {len(earlier.names)} layers, with {size} samples it has "
                    f"{len(sequence.names)}, or their names differ; a model must compute alike at every size"
                )
        sequences[size] = sequence
    return sequences


def _counted_elsewhere(module: nn.Module, sequence: LayerSequence) -> list[frozenset[str]]:
    """For each layer the names, in the layer, of parameters that an earlier layer holds too."""
    found: list[set[str]] = [set() for _ in sequence.names]
    for holders in shared_parameters(module, sequence.parameters):
        first = module.get_parameter(holders[0][1])
        for number, _ in holders[1:]:
            held = sequence.layers[number].named_parameters(remove_duplicate=False)
            found[number].update(name for name, parameter in held if parameter is first)
    return [frozenset(names) for names in found]


def _loss(loss: Loss | None, sequence: LayerSequence) -> Loss | None:
    """The loss as a function of the last layer's outputs, restored to the structure of the unsplit module's."""
    return None if loss is None else lambda returned, targets: loss(sequence.restore(returned), targets)


def _dtype(module: nn.Module) -> str:
    """The format of most parameters; of complex ones that of their two numbers."""
    formats = [str(parameter.dtype.to_real()).removeprefix("torch.") for parameter in module.parameters()]
    return max(set(formats), key=formats.count, default="float32")
