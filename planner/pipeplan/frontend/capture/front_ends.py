"""`capture_layers`: find a model's layers by one of three front ends: the user's stages, a chain, a captured graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import nn

from pipeplan.core.choices import known
from pipeplan.core.errors import InputError
from pipeplan.frontend.batch import Batch, mapped, tensors
from pipeplan.frontend.capture.closures import check_closures
from pipeplan.frontend.capture.layer_sequence import LayerSequence, Stages
from pipeplan.frontend.capture.private import FakeTensor, on_meta
from pipeplan.frontend.parameters import held_by
from pipeplan.frontend.profile.feed import preserved
from pipeplan.frontend.profile.layers import find_layers

if TYPE_CHECKING:
    from pipeplan.frontend.capture.graph.captured import CapturedModel

FrontEnd: TypeAlias = Literal["auto", "chain", "graph"]


def capture_layers(
    module: nn.Module,
    inputs: Batch,
    *,
    group: Sequence[str] = (),
    front_end: FrontEnd = "auto",
    both_modes: bool = True,
    checks: bool = True,
) -> LayerSequence:
    """Describe a module as a sequence of layers.

    Nothing is computed: only shapes and types of the module and the inputs are read.

    Parameters
    ----------
    module : torch.nn.Module
        On any device, ``meta`` included. `Stages` are used unchanged.
    inputs : tensor, tuple or list of tensors, or dict
        One micro-batch: the module's argument, its arguments, or its keyword arguments.
    group : sequence of str
        Patterns (``'blocks.*'``, ``'Bottleneck'``) of module paths or class names to keep whole, as one layer.
    front_end : {'auto', 'chain', 'graph'}
        ``'chain'``: submodules that pass one tensor on (see `frontend.profile.layers`). ``'graph'``: the graph of
        torch.export. ``'auto'``: the chain if the module is one, otherwise the graph.
    both_modes : bool
        Make captured layers follow ``train()`` and ``eval()``, for which the module is captured twice. Otherwise they
        run in its present mode only.
    checks : bool
        Check that forwards of a captured module repeat; False if that was checked with another size.

    Raises
    ------
    InputError
        If the front end cannot describe the module; the text has the reason, and what to change.
    """
    known(front_end, "front end", ("auto", "chain", "graph"))
    scripted = next((path for path, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    if scripted is not None:
        raise InputError(f"{scripted or 'the model'} is a torch.jit.ScriptModule; give the module that was scripted")
    check_closures(module)
    if isinstance(module, Stages) and front_end != "graph":
        _check_stages(module)
        return _submodules(module, tuple(name for name, _ in module.named_children()))
    if front_end == "graph":
        return _graph(module, inputs, group, both_modes, checks)
    try:
        return _submodules(module, _chain(module, inputs, group))
    except Exception as no_chain:  # a module that is not a chain may fail in any way when it is called as one
        if front_end == "chain":
            return _submodules(module, _chain_with_values(module, inputs, group, no_chain))
        try:
            return _graph(module, inputs, group, both_modes, checks)
        except InputError as no_graph:
            try:
                return _submodules(module, _chain_with_values(module, inputs, group, no_chain))
            except Exception:
                raise InputError(f"{no_graph}. Nor is it a chain: {_first_line(no_chain)}") from no_graph


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _check_stages(stages: Stages) -> None:
    """Refuse stages with a forward or hooks of their own, of which the single stages know nothing."""
    if type(stages).forward is not Stages.forward:
        raise InputError(
            f"{type(stages).__name__} has a forward of its own, and only the modules in it would run: put what it "
            "computes into one of them"
        )
    hooks = (stages._forward_hooks, stages._forward_pre_hooks, stages._backward_hooks, stages._backward_pre_hooks)
    if any(hooks):
        raise InputError("Stages have hooks as a whole, which would be lost: move them to the modules inside")


def graph_of(module: nn.Module, inputs: Batch, *, both_modes: bool = True, checks: bool = True) -> "CapturedModel":
    """Capture the module with torch.export, to be cut into layers (see `capture_layers`)."""
    from pipeplan.frontend.capture.graph.captured import CapturedModel

    return CapturedModel(module, inputs, both_modes=both_modes, checks=checks)


def _graph(module: nn.Module, inputs: Batch, group: Sequence[str], both_modes: bool, checks: bool) -> LayerSequence:
    """Layers of the captured graph, cut at the default places."""
    model = graph_of(module, inputs, both_modes=both_modes, checks=checks)
    return model.cut_at(model.module_cuts(group))


def _chain(module: nn.Module, inputs: Batch, group: Sequence[str]) -> tuple[str, ...]:
    """Module paths of a chain's layers, found on the meta device, where nothing is computed or written."""
    start = mapped(inputs, lambda tensor: torch.empty_like(tensor, device="meta"))
    return find_layers(on_meta(module), tensors(start), group=group)


def _chain_with_values(module: nn.Module, inputs: Batch, group: Sequence[str], reason: Exception) -> tuple[str, ...]:
    """Module paths of a chain's layers, found by a pass with values, which sizes inside a layer may depend on."""
    everything = (*module.parameters(), *module.buffers(), *tensors(inputs))
    if isinstance(reason, InputError) or any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in everything):
        raise reason
    with preserved(module):
        return find_layers(module, tensors(inputs), group=group)


def _submodules(module: nn.Module, names: tuple[str, ...]) -> LayerSequence:
    """The sequence of these submodules as layers."""
    layers = tuple(module.get_submodule(name) for name in names)
    return LayerSequence(
        names,
        layers,
        held_by(module, names),
        tuple(type(layer).__name__ for layer in layers),
        lambda outputs: outputs,
    )
