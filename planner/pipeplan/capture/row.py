"""A model as a row of layers, found by one of three front ends; `Stages` are the user's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from pipeplan.batch import Batch, mapped, tensors
from pipeplan.capture.private import on_meta
from pipeplan.errors import InputError
from pipeplan.profile.layers import find_layers
from pipeplan.profile.ties import held_by

if TYPE_CHECKING:
    from pipeplan.capture.graph.captured import CapturedModel


class Stages(nn.Sequential):  # type: ignore[misc]
    """Modules that are called one after the other: a tuple that one returns is the arguments of the next.

    ``pipeplan`` takes each of them as one layer, as it stands. As a module it computes what they compute together.

    >>> Stages(Encoder(), Decoder(), Head())                       # doctest: +SKIP
    """

    def forward(self, *inputs: Any) -> Any:
        """Through all of them."""
        value: Any = inputs
        for stage in self:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        return value


FrontEnd: TypeAlias = Literal["auto", "chain", "graph"]


@dataclass(frozen=True)
class Row:
    """Layers that together are the unsplit model: each is called with what the one ahead of it returned.

    Attributes
    ----------
    names : tuple of str
        What a plan's stages list; the same in every process that describes the same module and shapes.
    layers : tuple of torch.nn.Module
        ``layer(*tensors)`` returns a tensor or a tuple of tensors. The first one gets the tensors of a batch in order
        (see `pipeplan.batch`). They hold the parameters and buffers of the module that was described, not copies.
    parameters : tuple of mapping
        For each layer, what each of its parameters and buffers is called in the unsplit model, by its name inside the
        layer. What a layer holds beyond that are constants of the computation, which have their values.
    kinds : tuple of str
        For each layer the class of the module that it is, or of the innermost one that it belongs to.
    restore : callable
        ``restore(outputs)``: from what the last layer returns to what the unsplit module returns, which the workload's
        ``loss`` is called with: a tensor, a tuple, a dict or any other structure of tensors.
    """

    names: tuple[str, ...]
    layers: tuple[nn.Module, ...]
    parameters: tuple[Mapping[str, str], ...]
    kinds: tuple[str, ...]
    restore: Callable[[Any], Any]


def row_of(
    module: nn.Module,
    inputs: Batch,
    *,
    group: Sequence[str] = (),
    front_end: FrontEnd = "auto",
    both_modes: bool = True,
) -> Row:
    """Describe a module as a row of layers.

    Nothing is computed: shapes and types are all that is read of the module and the inputs.

    Parameters
    ----------
    module : torch.nn.Module
        On any device, ``meta`` included. `Stages` are taken as they stand.
    inputs : tensor, tuple or list of tensors, or dict
        One micro-batch: the module's argument, its arguments, or its keyword arguments.
    group : sequence of str
        Patterns (``'blocks.*'``, ``'Bottleneck'``) of module paths or class names to keep whole, as one layer.
    front_end : {'auto', 'chain', 'graph'}
        ``'chain'``: submodules that pass one tensor on (see `pipeplan.profile.layers`). ``'graph'``: what torch.export
        captures. ``'auto'``: the chain where the module is one, otherwise the graph.
    both_modes : bool
        Whether captured layers follow ``train()`` and ``eval()``, for which the module is captured twice. Otherwise
        they know its present mode only.

    Raises
    ------
    InputError
        If the front end cannot describe the module; the text says why, and what to change.
    """
    if front_end not in ("auto", "chain", "graph"):
        raise InputError(f"front end {front_end!r} is not known; choose auto, chain or graph")
    if isinstance(module, Stages) and front_end != "graph":
        return _submodules(module, tuple(name for name, _ in module.named_children()))
    if front_end == "graph":
        return _graph(module, inputs, group, both_modes)
    try:
        return _submodules(module, _chain(module, inputs, group))
    except Exception as no_chain:  # a module that no chain can be may fail in any way when it is called as one
        if front_end == "chain":
            raise
        try:
            return _graph(module, inputs, group, both_modes)
        except InputError as no_graph:
            raise InputError(f"{no_graph}. Nor is it a chain: {no_chain}") from no_graph


def graph_of(module: nn.Module, inputs: Batch, *, both_modes: bool = True) -> "CapturedModel":
    """What torch.export captures of the module, to be cut into rows (see `row_of`)."""
    from pipeplan.capture.graph.captured import CapturedModel

    return CapturedModel(module, inputs, both_modes=both_modes)


def _graph(module: nn.Module, inputs: Batch, group: Sequence[str], both_modes: bool) -> Row:
    """The layers that the graph is cut into."""
    model = graph_of(module, inputs, both_modes=both_modes)
    return model.row(model.module_cuts(group))


def _chain(module: nn.Module, inputs: Batch, group: Sequence[str]) -> tuple[str, ...]:
    """The layers of a chain, found on the meta device, where nothing is computed or written to."""
    start = mapped(inputs, lambda tensor: torch.empty_like(tensor, device="meta"))
    return find_layers(on_meta(module), tensors(start), group=group)


def _submodules(module: nn.Module, names: tuple[str, ...]) -> Row:
    """The row whose layers are these submodules."""
    layers = tuple(module.get_submodule(name) for name in names)
    return Row(
        names,
        layers,
        held_by(module, names),
        tuple(type(layer).__name__ for layer in layers),
        lambda outputs: outputs,
    )
