"""Check that a forward has nothing that acts on gradients only: a graph of it would lose that, and train wrongly.

::

    forward     x ─▶ sign ─▶ y          a graph has this line
    backward    g ◀── own ◀─ g          and autograd's derivative of it, not the function's own backward

Autograd functions, hooks on tensors, modules and saved tensors, and changes of what requires a gradient leave no
operation in the graph. They are noticed while torch.export runs the forward.
"""

import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.frontend.capture.graph.derivative import Applied
from pipeplan.frontend.capture.private import BackwardCFunction, CheckpointFunction, global_module_hooks

_INSTEAD = (
    "Make the module a chain, or give stage modules of your own with Stages: they run as they stand, with all that "
    "acts on gradients"
)
_OPERATOR = "Or write it as an operator by torch.library.custom_op with register_autograd, which a graph keeps"
TAKES_GRADIENTS = "takes gradients in its forward"
READS_GRADIENT = "reads a gradient that an earlier backward leaves"
_HARMLESS = ("torch.utils.checkpoint._NoopSaveInputs",)
"""Autograd functions of torch without a gradient of their own."""
_TORCH, _FRONTEND = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
_PYTHON, _PACKAGES = sysconfig.get_paths()["stdlib"], "site-packages"
"""Folders whose frames are not the user's, and that of Python, in which packages may be."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


Seen: TypeAlias = str | tuple[Applied, str]
"""A sentence; that of a function with what the function was applied to."""


class LostInCaptureError(InputError):
    """A module has what a graph of its forward cannot hold."""


def check_module_hooks(module: nn.Module) -> None:
    """Refuse hooks on gradients of modules. Hooks on forwards are part of the forward, and of its graph.

    Raises
    ------
    LostInCaptureError
        With the module's path and the hook.
    """
    for path, part in module.named_modules():
        hooks = [*part._backward_hooks.values(), *part._backward_pre_hooks.values()]
        if hooks:
            raise LostInCaptureError(
                f"{path or type(module).__name__} has a hook on its backward ({place_of(hooks[0])}), which a captured "
                f"graph would lose. {_INSTEAD}"
            )
    if global_module_hooks():
        raise LostInCaptureError(
            f"hooks on the calls of all modules are registered ({place_of(global_module_hooks()[0])}), which a "
            "captured graph would lose: remove them before the module is captured"
        )


@contextmanager
def nothing_on_gradients(module: nn.Module, name: str) -> Iterator[None]:
    """Context for one forward of the module; refuses what acts on gradients and leaves no operation.

    Parameters
    ----------
    name : str
        The module's name for the message.

    Raises
    ------
    LostInCaptureError
        At the end of the context, with the function or the hook, its file and line, and what to do.
    """
    seen: list[Seen] = []
    wanted = {path: parameter.requires_grad for path, parameter in module.named_parameters()}
    error = None
    with watching_gradients(seen.append):
        try:
            yield
        except Exception as raised:
            error = raised
    lost = _lost(seen)
    if lost:
        raise LostInCaptureError(f"{name} {lost}") from error
    if error is not None:
        raise error
    for path, parameter in module.named_parameters():
        if parameter.requires_grad != wanted[path]:
            raise LostInCaptureError(
                f"{name} changes in its forward whether {path} requires a gradient, which a captured graph would not "
                "repeat: set requires_grad when the module is built"
            )


@contextmanager
def watching_gradients(notice: Callable[[Seen], object]) -> Iterator[None]:
    """Context that calls ``notice`` with everything that acts on gradients, as it happens."""
    with ExitStack() as stack:
        for owner, attribute, watched in _watched(notice):
            stack.enter_context(_replaced(owner, attribute, watched))
        yield


def _lost(seen: Sequence[Seen]) -> str:
    """Return the first sentence that is not about a function whose backward is the derivative of its forward."""
    known: dict[str, bool] = {}
    for each in seen:
        if isinstance(each, str):
            return each
        applied, text = each
        key = repr(applied)
        if key not in known:
            known[key] = applied.is_derivative()
        if not known[key]:
            return text
    return ""


def _watched(tell: Callable[[Seen], object]) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Yield each attribute to replace, and the replacement as a function of the original."""

    def first(notice: Callable[[Any], Seen | None]) -> Callable[[Any], Any]:
        def noticed(original: Any) -> Any:
            def called(*args: Any, **kwargs: Any) -> Any:
                seen = notice(args[0] if args else None)
                if seen is not None:
                    tell(seen)
                return original(*args, **kwargs)

            return called

        return noticed

    def grad_fn(original: Any) -> Any:
        return property(first(_graph_node)(lambda tensor: original.__get__(tensor, type(tensor))))

    def grad(original: Any) -> Any:
        def read(tensor: Any) -> Any:
            found = original.__get__(tensor, type(tensor))
            if found is None and is_users(sys._getframe(1).f_code):  # otherwise of a backward in this forward
                tell(f"{READS_GRADIENT} ({_caller()}), and under a plan other backwards come before a forward")
            return found

        return property(read, original.__set__, original.__delete__)

    yield BackwardCFunction, "__init__", first(_function)
    yield torch.Tensor, "register_hook", first(_tensor_hook)
    yield torch.Tensor, "register_post_accumulate_grad_hook", first(_tensor_hook)
    yield torch.Tensor, "grad_fn", grad_fn
    yield torch.Tensor, "grad", grad
    yield torch.Tensor, "retain_grad", first(_kept_gradient)
    yield torch.autograd.graph.saved_tensors_hooks, "__enter__", first(_saved_hook)
    yield torch.inference_mode, "__enter__", first(_inference)
    yield torch.autograd, "grad", first(_gradient)
    yield torch.autograd, "backward", first(_gradient)
    yield torch.autograd.forward_ad, "make_dual", first(_gradient)


def _function(context: Any) -> Seen | None:
    function = type(context)._forward_cls
    if any(frame.f_code.co_qualname.startswith("OpOverload") for frame in _frames()):
        return None  # the autograd of an operator, which the graph has as a whole
    if f"{function.__module__}.{function.__qualname__}" in _HARMLESS or not torch.is_grad_enabled():
        return None
    if function is CheckpointFunction:
        return (
            f"calls torch.utils.checkpoint with use_reentrant=True ({_caller()}), whose gradients a captured graph "
            "would lose: pass use_reentrant=False, or leave it out, since the plan says which layers are recomputed"
        )
    text = (
        f"applies the autograd function {function.__qualname__} ({_caller()}), whose backward "
        f"({place_of(function.backward)}) a captured graph would lose. {_INSTEAD}. {_OPERATOR}"
    )
    return Applied.now(function), text


def _tensor_hook(_: Any) -> str:
    return f"registers a hook on a tensor's gradient ({_caller()}), which a captured graph would lose. {_INSTEAD}"


def _kept_gradient(_: Any) -> str:
    return f"keeps the gradient of a tensor ({_caller()}), which a captured graph would not. {_INSTEAD}"


def _graph_node(_: Any) -> str | None:
    frame = _frames()[0]
    if not is_users(frame.f_code):
        return None  # torch reads it in many places
    return f"reads a tensor's grad_fn ({_caller()}), hooks on which a captured graph would lose. {_INSTEAD}"


def _saved_hook(context: Any) -> str | None:
    kind = type(context)
    if kind.__module__.startswith("torch.") and kind is not torch.autograd.graph.saved_tensors_hooks:
        return None  # activations on the CPU, torch's own checkpoints: the same gradients
    return f"has hooks on tensors saved for the backward ({_caller()}), which a captured graph would lose. {_INSTEAD}"


def _inference(context: Any) -> str | None:
    if not context.mode or all(not is_users(frame.f_code) for frame in _frames()):
        return None
    return (
        f"computes in torch.inference_mode ({_caller()}), which a captured graph would leave out: write "
        "torch.no_grad(), which it keeps"
    )


def _gradient(_: Any) -> str:
    return f"{TAKES_GRADIENTS} ({_caller()}), which a captured graph cannot repeat. {_INSTEAD}"


def _frames() -> list[FrameType]:
    """Return the frames of the forward, from the innermost outwards."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            if frame.f_code.co_filename.startswith(_FRONTEND):
                break
            found.append(frame)
        frame = frame.f_back
    return found


def _caller() -> str:
    """Return file, line and function of the innermost of the user's frames."""
    users = next((frame for frame in _frames() if is_users(frame.f_code)), None)
    if users is None:
        return "in torch"
    return f"{Path(users.f_code.co_filename).name}, line {users.f_lineno}, in {users.f_code.co_qualname}"


def is_users(code: CodeType) -> bool:
    """Return whether code is the user's: in a file, and neither torch's nor the frontend's."""
    file = code.co_filename
    return not file.startswith((_TORCH, _FRONTEND, "<")) and not (file.startswith(_PYTHON) and _PACKAGES not in file)


def is_own(code: CodeType) -> bool:
    """Return whether code is the user's own, and not of a package."""
    return is_users(code) and "-packages" not in code.co_filename


def place_in(trace: str | None) -> str:
    """Return file and line of the innermost of the user's frames in a traceback, in brackets; empty if none."""
    for file, line in reversed(_FRAME.findall(trace or "")):
        if not file.startswith((_TORCH, _FRONTEND, "<")):
            return f" ({Path(file).name}, line {line})"
    return ""


def place_of(function: Any) -> str:
    """Return name, file and first line of a function, as far as they are known."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return name if code is None else f"{name}, {Path(code.co_filename).name}, line {code.co_firstlineno}"


@contextmanager
def _replaced(owner: Any, attribute: str, watched: Callable[[Any], Any]) -> Iterator[None]:
    """Context in which an attribute of a class or module is another one."""
    own = attribute in vars(owner)
    original = vars(owner)[attribute] if own else getattr(owner, attribute)
    setattr(owner, attribute, watched(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, attribute, original)
        else:
            delattr(owner, attribute)
