"""Checks and traces of modules that are not repeated for like ones: on ranks with many plans of few models they cost
most."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import TypeVar

from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture import flow, front_ends
from pipeplan.frontend.capture.flow import Flow
from pipeplan.frontend.capture.graph import captured
from pipeplan.frontend.capture.graph.layer import GraphLayer
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.python_values import attributes_of
from pipeplan.frontend.operators.follow import NamedWeight
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.split_backward.queue import JOINED
from pipeplan_executor.sharding.mesh import layers, programs
from pipeplan_executor.stages import on_meshes, split

Found = TypeVar("Found")
Context = Callable[[], AbstractContextManager[object]]


def check_once() -> None:
    """Find layers, call one twice, trace and record them once in this process for the same types, sizes and inputs.

    Layers of captured graphs are traced and recorded each time, since their type does not say what they compute.
    """
    front_ends.find_layers = _once(front_ends.find_layers)
    flow.differs_each_time = _once(flow.differs_each_time)
    captured.check_repeats = _once(captured.check_repeats)
    split.trace = _traced_once(split.trace)
    layers.program = on_meshes.program = _recorded_once(programs.program)


def _traced_once(trace: Callable[[LayerSequence, Batch], Flow]) -> Callable[[LayerSequence, Batch], Flow]:
    known: dict[Hashable, Flow] = {}

    def found(sequence: LayerSequence, inputs: Batch) -> Flow:
        if any(isinstance(layer, GraphLayer) for layer in sequence.layers):
            return trace(sequence, inputs)
        key = *map(_whole, sequence.layers), *map(_size, tensors(inputs)), sequence.names, str(sequence.parameters)
        if key in known:
            return known[key]
        made = trace(sequence, inputs)
        if not any(hasattr(layer, JOINED) for layer in sequence.layers):  # of which the trace leaves a note
            known[key] = made
        return made

    return found


def _recorded_once(program: Callable[..., Program]) -> Callable[..., Program]:
    known: dict[Hashable, Program] = {}

    @wraps(program)
    def found(
        name: str,
        layer: nn.Module,
        given: Sequence[Tensor],
        weights: Mapping[str, NamedWeight],
        context: partial[object],
        mode: bool,
        targets: Batch = (),
        loss: Callable[..., Tensor] | None = None,
    ) -> Program:
        if isinstance(layer, GraphLayer) or loss is not None:
            return program(name, layer, given, weights, context, mode, targets, loss)
        key = _whole(layer), *map(_size, given), *weights.items(), context.args, mode
        if key not in known:
            known[key] = program(name, layer, given, weights, context, mode)
        return known[key]

    return found


def _once(check: Callable[..., Found]) -> Callable[..., Found]:
    known: dict[Hashable, Found] = {}

    @wraps(check)
    def found(module: nn.Module, inputs: Batch, **options: Hashable) -> Found:
        key = _kind(module), *map(_size, tensors(inputs)), *options.items()
        if key not in known:
            known[key] = check(module, inputs, **options)
        return known[key]

    return found


def _kind(module: nn.Module) -> Hashable:
    """What modules have in common that compute the same with other weights."""
    parts = tuple((name, type(part), part.extra_repr(), part.training) for name, part in module.named_modules())
    return parts, tuple((name, *_size(tensor)) for name, tensor in module.state_dict(keep_vars=True).items())


def _whole(module: nn.Module) -> Hashable:
    """The same with all attributes."""
    return _kind(module), str(attributes_of(module))


def _size(tensor: Tensor) -> tuple[Hashable, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device.type, tensor.requires_grad
