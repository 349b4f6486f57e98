"""Record of the operations of a layer's forward, on tensors without values.

They are seen below autograd.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pipeplan.frontend.batch import mapped, tensors
from pipeplan.frontend.capture.private import FakeTensorMode, TorchDispatchMode, fake, memory_of, on_fake
from pipeplan.frontend.capture.python_values import random_numbers


@dataclass(frozen=True)
class Call:
    """A call of an operation.

    Attributes
    ----------
    operation : OpOverload
    args, kwargs
        As it got them.
    given : tuple of Tensor
        The tensors among the arguments.
    wanted : tuple of bool
        For each of these, whether it needs a gradient.
    made : tuple of Tensor
        Results; those written in place are among ``given`` too.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: tuple[Tensor, ...]
    wanted: tuple[bool, ...]
    made: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        """Name of the operation, without overload or the mark of a write in place."""
        return str(self.operation._schema.name.partition("::")[2]).rstrip("_") or "operation"


@dataclass(frozen=True)
class Record:
    """The forward of a layer.

    Attributes
    ----------
    calls : sequence of Call
    loss : int
        Number of calls before those of the loss.
    inputs, outputs : tuple of Tensor
        Those of the layer, or its loss.
    returned, targets : tuple of Tensor
        What the layer returns, and what its loss compares that with.
    parameters, buffers : mapping
        By their names in the layer.
    kept : set
        Memory (see `memory_of`) that is kept for the backward.
    loss_draws : bool
        The loss draws random numbers.
    """

    calls: Sequence[Call]
    loss: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    kept: frozenset[Any]
    loss_draws: bool


def record(
    layer: nn.Module,
    inputs: Sequence[Tensor],
    context: Callable[[], AbstractContextManager[object]],
    loss: Callable[[Any, Any], Any] | None,
    targets: Any,
) -> Record:
    """Run a copy of the layer without values, and record it.

    Parameters
    ----------
    inputs : sequence of Tensor
        Only shapes, types and needs of a gradient are read.
    context : callable
        Context of the forward and the loss, for mixed precision.
    loss : callable, optional
        ``loss(outputs, targets)``, of the last layer.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    blank = on_fake(layer, mode, "cpu")
    given = tuple(fake(each, mode, "cpu").requires_grad_(each.requires_grad) for each in inputs)
    wanted = () if loss is None else mapped(targets, lambda tensor: fake(tensor, mode, "cpu"))
    recorder, kept = _Recorder(), set[Any]()

    def pack(tensor: Tensor) -> Tensor:
        recorder.alive.append(tensor)
        kept.add(memory_of(tensor))
        return tensor

    with torch.enable_grad(), mode, recorder, saved_tensors_hooks(pack, lambda tensor: tensor), context():
        try:
            returned = blank(*given)
        except RuntimeError:  # it writes into its inputs, which are copied for it
            recorder.calls.clear()
            kept.clear()
            returned = blank(*(each.clone() for each in given))
        made, before, numbers = tensors(returned), len(recorder.calls), random_numbers()
        outputs = made if loss is None else tensors(loss(returned, wanted))
    parameters = dict(blank.named_parameters(remove_duplicate=False))
    buffers = dict(blank.named_buffers(remove_duplicate=False))
    ends = given, outputs, made, tensors(wanted)
    of_loss = (call.operation.tags for call in recorder.calls[before:])
    draws = numbers != random_numbers() or any(torch.Tag.nondeterministic_seeded in tags for tags in of_loss)
    return Record(recorder.calls, before, *ends, parameters, buffers, frozenset(kept), draws)


@dataclass
class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Mode that records all operations that make tensors, and keeps these alive so that they stay distinct."""

    calls: list[Call] = field(default_factory=list)
    alive: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tuple(_tensors((*args, *kwargs.values())))
        wanted = tuple(each.requires_grad for each in given)
        result = func(*args, **kwargs)
        made = tuple(_tensors((result,)))
        if made:
            self.calls.append(Call(func, tuple(args), kwargs, given, wanted, made))
        return result


def _tensors(values: Any) -> Any:
    """Yield the tensors in nested tuples and lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
