"""Chain of layers in a module, found by recording one forward pass.

::

    Net                              calls seen                       layers
    ├─ features: Sequential          Net ─┬─ features ─┬─ features.0   features.0
    │  ├─ 0: Conv2d                       │            └─ features.1   features.1
    │  └─ 1: ReLU                         ├─ flat                      flat
    ├─ flat: Flatten                      └─ block ─── (a residual)    block
    └─ block: Residual

A module is opened if it only calls its children in sequence. The first child takes the very tensor that the module
took, each next one takes the very tensor that the one before returned, and the module returns the last one's. Any
other module is a layer.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.frontend.capture.python_values import own_attributes, random_numbers


@dataclass(eq=False)
class Call:
    """One call of a module: its path, its input and output (with the tensors' versions then), the calls inside it.

    ``drawn``: whose random numbers it drew outside these calls. ``before`` and ``changed``: its attributes at its
    beginning, and those that are others at its end. ``context``: whether autograd and autocast were on.
    """

    path: str
    module: nn.Module
    given: Any = None
    given_version: int = -1
    returned: Any = None
    returned_version: int = -1
    extra: bool = False
    drawn: str = ""
    before: dict[str, object] = field(default_factory=dict)
    changed: str = ""
    context: tuple[object, ...] = ()
    inside: list["Call"] = field(default_factory=list)


def find_layers(module: nn.Module, inputs: Any, *, group: Sequence[str] = ()) -> tuple[str, ...]:
    """Module paths of the layers, in the order in which they run.

    Parameters
    ----------
    module : torch.nn.Module
        On any device, ``meta`` included.
    inputs : tensor or tuple of one tensor
        A batch on the module's device. One forward pass is run on it, without gradients.
    group : sequence of str
        Patterns of module paths or class names that are not opened, like ``'blocks.*'`` or ``'Bottleneck'``.

    Raises
    ------
    InputError
        If the module is not a chain of at least two layers; the text names the place where the chain breaks.
    """
    top = _watch(module, one_tensor(inputs))
    trouble = _trouble(top)
    if trouble:
        raise InputError(f"{type(module).__name__} is not a chain of layers: {trouble}")
    layers = tuple(call.path for call in _leaves(top, tuple(group)))
    again = _watch(module, one_tensor(inputs), graphs=(True,))
    elsewhere = _in_context(again, {"", *(path[:n] for path in layers for n, dot in enumerate(path) if dot == ".")})
    if elsewhere:
        raise InputError(f"{type(module).__name__} is not a chain of layers: {elsewhere}")
    if layers != tuple(path for path in _paths(again) if path in set(layers)):
        raise InputError(f"{type(module).__name__} is not a chain of layers: it calls other layers each time")
    if len(layers) < 2:
        raise InputError(f"{type(module).__name__} is a single layer, {layers[0]!r}: there is nothing to cut")
    return layers


def one_tensor(inputs: Any) -> torch.Tensor:
    """Return the single tensor of a chain's inputs.

    Raises
    ------
    InputError
        If the inputs are not one tensor.
    """
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    if isinstance(inputs, torch.Tensor):
        return inputs
    what = f"{len(inputs)} inputs" if isinstance(inputs, tuple | list) else type(inputs).__name__
    raise InputError(
        f"the model got {what}; a chain of layers passes one tensor on. Give one tensor, and let a module inside the "
        "model make masks and positions from it"
    )


def _watch(module: nn.Module, batch: torch.Tensor, graphs: Sequence[bool] = (False, True)) -> Call:
    """Run the module once; return its call with all calls inside."""
    for graph in graphs:  # a forward that puts a hook on a tensor needs a graph
        root = Call("", module)
        try:
            with _recording(module, root), torch.set_grad_enabled(graph):
                module(batch)
            break
        except RuntimeError:
            if graph is graphs[-1]:
                raise
    return root.inside[0]


@contextmanager
def _recording(module: nn.Module, root: Call) -> Iterator[None]:
    open_calls = [root]
    handles = []
    numbers = random_numbers()

    def draws() -> None:
        """Ascribe random numbers that were drawn since the last call began or ended to the innermost call."""
        nonlocal numbers
        before, numbers = numbers, random_numbers()
        open_calls[-1].drawn = next(
            (kind for kind in numbers if numbers[kind] != before.get(kind)), open_calls[-1].drawn
        )

    def begin(path: str, submodule: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        draws()
        given = args[0] if args else None
        call = Call(path, submodule, given, _version(given), extra=len(args) != 1 or bool(kwargs))
        call.before = own_attributes(submodule)
        call.context = (torch.is_grad_enabled(), *((torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")))
        open_calls[-1].inside.append(call)
        open_calls.append(call)

    def end(returned: Any) -> None:
        draws()
        call = open_calls.pop()
        after = own_attributes(call.module)
        call.changed = next((name for name in after if name in call.before and after[name] != call.before[name]), "")
        call.returned, call.returned_version = returned, _version(returned)

    for path, submodule in module.named_modules():
        handles.append(
            submodule.register_forward_pre_hook(
                lambda m, args, kwargs, path=path: begin(path, m, args, kwargs), with_kwargs=True
            )
        )
        handles.append(submodule.register_forward_hook(lambda _m, _args, returned: end(returned)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _paths(call: Call) -> Iterator[str]:
    """Paths of all calls inside, in order."""
    for child in call.inside:
        yield child.path
        yield from _paths(child)


def _in_context(call: Call, opened: Set[str]) -> str:
    """Description of a layer that an opened module calls without autograd, or under autocast; empty if none."""
    for child in call.inside:
        if child.context != call.context:
            return f"{child.path!r} is called in a context of its own (no_grad or autocast), which would be lost"
        found = _in_context(child, opened) if child.path in opened else ""
        if found:
            return found
    return ""


def _version(value: Any) -> int:
    return int(value._version) if isinstance(value, torch.Tensor) else -1


def _same(value: Any, version: int, other: Any, other_version: int) -> bool:
    """True if both are the same tensor, without a write in between."""
    return isinstance(value, torch.Tensor) and value is other and version == other_version


def _trouble(call: Call) -> str:
    """Reason why the call does not merely chain its children; empty if it does."""
    calls = call.inside
    if not calls:
        return "it has no modules inside to cut between; put its layers into an nn.Sequential"
    if call.extra:
        return "it takes more than one tensor; a chain of layers passes one tensor on"
    repeated = sorted({c.path for c in calls if sum(other.path == c.path for other in calls) > 1})
    if repeated:
        return f"{repeated[0]!r} is called more than once in one pass; give every use a module of its own"
    value, version, before = call.given, call.given_version, "the model's input"
    for child in calls:
        if child.extra:
            return f"{child.path!r} takes more than one tensor; wrap it in a module that takes one"
        if not _same(value, version, child.given, child.given_version):
            return _gap(before, repr(child.path), value, child.given)
        value, version, before = child.returned, child.returned_version, repr(child.path)
    if not _same(value, version, call.returned, call.returned_version):
        return _gap(before, "the model's output", value, call.returned)
    return _leftover(call)


def _gap(before: str, after: str, made: Any, taken: Any) -> str:
    if not isinstance(made, torch.Tensor):
        return f"{before} returns {type(made).__name__}, not one tensor; wrap it in a module that returns one tensor"
    shapes = f"{tuple(made.shape)} became {tuple(taken.shape)}" if isinstance(taken, torch.Tensor) else "it changed"
    return (
        f"something is computed outside any module between {before} and {after} ({shapes}); put it into a module of "
        "its own, like nn.Flatten() for torch.flatten, or wrap the modules around it in one"
    )


def _leftover(call: Call) -> str:
    """Description of a parameter, buffer or hook that would be lost if only the children ran."""
    inside = {id(tensor) for child in call.inside for tensor in _tensors(child.module)}
    for name, tensor in (*call.module.named_parameters(), *call.module.named_buffers()):
        if id(tensor) not in inside:
            full = f"{call.path}.{name}".lstrip(".")
            return f"{full!r} belongs to no module that runs; remove it, or move it into the module that uses it"
    return _python(call)


def _python(call: Call) -> str:
    """Description of hooks, random numbers or attributes that would be lost if only the children ran."""
    name, part = call.path or "the model", call.module
    if part._forward_hooks or part._forward_pre_hooks:
        return f"{name} has forward hooks, which would be lost; move them to modules inside"
    if part._backward_hooks or part._backward_pre_hooks:
        return f"{name} has backward hooks, which would be lost; move them to modules inside"
    if call.drawn:
        return f"{name} draws {call.drawn} random numbers between the modules inside, which would be lost"
    if call.changed:
        return f"{name} changes its attribute {call.changed!r} between the modules inside, which would be lost"
    return ""


def _tensors(module: nn.Module) -> tuple[torch.Tensor, ...]:
    return (*module.parameters(), *module.buffers())


def _leaves(call: Call, group: tuple[str, ...]) -> Iterator[Call]:
    for child in call.inside:
        kept = any(fnmatchcase(child.path, p) or type(child.module).__name__ == p for p in group)
        if kept or not child.inside or _trouble(child):
            yield child
        else:
            yield from _leaves(child, group)
