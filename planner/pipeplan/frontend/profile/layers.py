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
from typing import Any, TypeAlias

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.frontend.capture.graph.gradients import place_of, watching_gradients
from pipeplan.frontend.capture.private import (
    TorchDispatchMode,
    global_module_hooks,
    memory_of,
    modes_on,
    module_call,
    pytree,
)
from pipeplan.frontend.capture.python_values import own_attributes, random_numbers


@dataclass(eq=False)
class Call:
    """One call of a module: its path, its input and output (with the tensors' states then), the calls inside it.

    ``drawn``: whose random numbers it drew outside these calls. ``before`` and ``changed``: its attributes at its
    beginning, and those, or one of a module inside, that are others at its end. ``acts``: what it does outside these
    calls that makes no tensor: a hook on a gradient, a write. ``context``: whether autograd, autocast and modes are on.
    """

    path: str
    module: nn.Module
    given: Any = None
    given_state: "_State" = ()
    returned: Any = None
    returned_state: "_State" = ()
    extra: bool = False
    drawn: str = ""
    before: dict[str, object] = field(default_factory=dict)
    changed: str = ""
    acts: str = ""
    context: tuple[object, ...] = ()
    inside: list["Call"] = field(default_factory=list)


_State: TypeAlias = tuple[object, ...]
"""Version, memory and need for a gradient of a tensor; empty for anything else."""


def find_layers(module: nn.Module, inputs: Any, *, group: Sequence[str] = ()) -> tuple[str, ...]:
    """Module paths of the layers, in the order in which they run.

    Parameters
    ----------
    module : torch.nn.Module
        On any device, ``meta`` included.
    inputs : tensor or tuple of one tensor
        A batch on the module's device. Two forward passes are run on it.
    group : sequence of str
        Patterns of module paths or class names that are not opened, like ``'blocks.*'`` or ``'Bottleneck'``.

    Raises
    ------
    InputError
        If the module is not a chain of at least two layers; the text names the place where the chain breaks.
    """
    known: dict[str, dict[str, object]] = {}
    first = _watch(module, one_tensor(inputs), known)
    again = _watch(module, one_tensor(inputs), known, graphs=(True,))
    trouble = _trouble(first) or _trouble(again) or _hooked_everywhere()
    if trouble:
        raise InputError(f"{type(module).__name__} is not a chain of layers: {trouble}")
    closed = {call.path for call in (*_calls(first), *_calls(again)) if not call.inside or _trouble(call)}
    layers = tuple(call.path for call in _leaves(first, tuple(group), closed))
    if layers != tuple(call.path for call in _calls(again) if call.path in set(layers)):
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


def _watch(
    module: nn.Module, batch: torch.Tensor, known: dict[str, dict[str, object]], graphs: Sequence[bool] = (False, True)
) -> Call:
    """Run the module once; return its call with all calls inside. ``known``: attributes by path, of an earlier run."""
    for graph in graphs:  # a forward that puts a hook on a tensor needs a graph
        root = Call("", module)
        try:
            with _recording(module, root, known), torch.set_grad_enabled(graph):
                module(batch)
            break
        except RuntimeError:
            if graph is graphs[-1]:
                raise
    return root.inside[0]


class _Open(list[Call]):
    """Calls that have begun, the innermost last. What is noticed is ascribed to that one."""

    def __init__(self, root: Call) -> None:
        super().__init__([root])
        self._numbers = random_numbers()

    def draws(self) -> None:
        """Ascribe random numbers that were drawn since the last call began or ended."""
        before, self._numbers = self._numbers, random_numbers()
        kinds = (kind for kind, state in self._numbers.items() if state != before.get(kind))
        self[-1].drawn = next(kinds, self[-1].drawn)

    def notice(self, seen: object) -> None:
        """Ascribe what acts on gradients. A function's own backward shows as a new tensor."""
        if isinstance(seen, str):
            self[-1].acts = self[-1].acts or seen.partition(", which a captured graph")[0]


class _Writes(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode that notices writes into parameters, buffers, and what passes between modules, in open calls.

    Autograd counts no version of a write through ``.data``, and parameters are not among what passes.
    """

    def __init__(self, module: nn.Module, calls: _Open) -> None:
        super().__init__()
        self._calls = calls
        self.held = {_memory(tensor) for tensor in _tensors(module)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and len(self._calls) > 1:
            given = zip(func._schema.arguments, args, strict=False)
            named = ((a, kwargs[a.name]) for a in func._schema.arguments if a.name in (kwargs or {}))
            written = [v for a, v in (*given, *named) if a.alias_info is not None and a.alias_info.is_write]
            leaves = (leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, torch.Tensor))
            if any(_memory(leaf) in self.held for leaf in leaves):
                self._calls[-1].acts = self._calls[-1].acts or f"writes into a tensor ({func._schema.name})"
        if func._schema.name in _READS and len(self._calls) > 1:
            self._calls[-1].acts = self._calls[-1].acts or "reads values, on which what it does may depend,"
        return func(*args, **(kwargs or {}))


_READS = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"})


@contextmanager
def _recording(module: nn.Module, root: Call, known: dict[str, dict[str, object]]) -> Iterator[None]:
    open_calls = _Open(root)
    writes = _Writes(module, open_calls)
    handles = []

    def begin(path: str, submodule: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        open_calls.draws()
        given = args[0] if args else None
        call = Call(path, submodule, given, _state(given), extra=len(args) != 1 or bool(kwargs))
        call.before = own_attributes(submodule)
        changed = _changed(known.get(path, call.before), call.before)
        open_calls[-1].changed = open_calls[-1].changed or (changed and f"{path}.{changed}")
        kinds = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
        call.context = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), modes_on(), *kinds)
        writes.held.add(_memory(given))
        open_calls[-1].inside.append(call)
        open_calls.append(call)

    def end(returned: Any) -> None:
        open_calls.draws()
        call = open_calls.pop()
        known[call.path] = own_attributes(call.module)
        call.changed = _changed(call.before, known[call.path]) or call.changed
        call.returned, call.returned_state = returned, _state(returned)
        writes.held.add(_memory(returned))

    for path, submodule in module.named_modules():
        handles.append(
            submodule.register_forward_pre_hook(
                lambda m, args, kwargs, path=path: begin(path, m, args, kwargs), with_kwargs=True
            )
        )
        handles.append(submodule.register_forward_hook(lambda _m, _args, returned: end(returned)))
    try:
        with watching_gradients(open_calls.notice), writes:
            yield
    finally:
        for handle in handles:
            handle.remove()


def _changed(before: dict[str, object], after: dict[str, object]) -> str:
    """Return the first attribute that is another one."""
    return next((name for name in after if name in before and after[name] != before[name]), "")


def _calls(call: Call) -> Iterator[Call]:
    """All calls inside, in order."""
    for child in call.inside:
        yield child
        yield from _calls(child)


def _hooked_everywhere() -> str:
    """Description of hooks on the calls of all modules, which those that are opened would lose; empty if none."""
    hooks = global_module_hooks()
    return f"hooks on the calls of all modules are registered ({place_of(hooks[0])}); remove them" if hooks else ""


def _memory(value: Any) -> Any:
    try:
        return memory_of(value) if isinstance(value, torch.Tensor) else None
    except (RuntimeError, NotImplementedError):  # sparse tensors
        return None


def _state(value: Any) -> _State:
    if not isinstance(value, torch.Tensor):
        return ()
    return (-1 if value.is_inference() else value._version, value.requires_grad, _memory(value))


def _same(value: Any, state: _State, other: Any, other_state: _State, hooked: bool = False) -> bool:
    """True if both are the same tensor, without a write in between. ``hooked``: a module's hooks may make another."""
    return isinstance(value, torch.Tensor) and (value is other or hooked) and state == other_state


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
    value, state, before, hooked = call.given, call.given_state, "the model's input", False
    for child in calls:
        if child.context != call.context:
            return f"{child.path!r} is called in a context of its own (no_grad or autocast), which would be lost"
        if child.extra:
            return f"{child.path!r} takes more than one tensor; wrap it in a module that takes one"
        if not _same(value, state, child.given, child.given_state, hooked):
            return _gap(before, repr(child.path), value, child.given)
        value, state, before = child.returned, child.returned_state, repr(child.path)
        hooked = bool(child.module._backward_hooks or child.module._backward_pre_hooks)
    if not _same(value, state, call.returned, call.returned_state, hooked):
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
    if not module_call(part):
        return f"{name} has a __call__ of its own, which would be lost; write it as forward"
    if call.acts:
        return f"{name} {call.acts} between the modules inside, which would be lost"
    if call.drawn:
        return f"{name} draws {call.drawn} random numbers between the modules inside, which would be lost"
    if call.changed:
        return f"{name} changes its attribute {call.changed!r} between the modules inside, which would be lost"
    return ""


def _tensors(module: nn.Module) -> tuple[torch.Tensor, ...]:
    return (*module.parameters(), *module.buffers())


def _leaves(call: Call, group: tuple[str, ...], closed: Set[str]) -> Iterator[Call]:
    for child in call.inside:
        kept = any(fnmatchcase(child.path, p) or type(child.module).__name__ == p for p in group)
        if kept or child.path in closed:
            yield child
        else:
            yield from _leaves(child, group, closed)
