"""Check that no function in a module holds modules or weights by a closure: in copies it would go on with the original.

Stages, like all copies, are made by `copy.deepcopy`, which does not copy functions::

    self.linear.register_forward_hook(lambda module, given, made: made * self.gain)      self stays the original
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from pipeplan.frontend.capture.graph.gradients import LostInCaptureError, is_own, is_users, place_of

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_DEEPEST = 4
"""Depth to which functions are followed inside functions, lists and mappings."""


def check_closures(module: nn.Module) -> None:
    """Refuse functions among attributes, hooks and methods that hold a module with weights, or a weight.

    Raises
    ------
    LostInCaptureError
        With the submodule, the function and its line.
    """
    for path, part in module.named_modules():
        own = [value for name, value in vars(part).items() if name not in _REGISTRIES]
        methods = [value for kind in type(part).__mro__ for name, value in vars(kind).items() if name != "__init__"]
        function = next((found for value in own for found in _holding(value, _DEEPEST)), None)
        function = function or next(filter(_reads_original, methods), None)
        if function is not None:
            raise LostInCaptureError(
                f"{path or type(module).__name__} has a function ({place_of(function)}) that holds a module or a "
                "weight by a closure or a global, and copies of the module, as stages are, would go on with the "
                "original's: read it from self, write the function as a method, bind the module with "
                "functools.partial, or use the module that a hook is given"
            )


def _reads_original(method: object) -> bool:
    """Return whether a method of the user's own class reads a module or a weight as a variable outside it."""
    if not isinstance(method, FunctionType) or not is_own(method.__code__):
        return False
    read = [method.__globals__.get(name) for name in method.__code__.co_names]
    return any(map(_is_original, (*read, *_cells(method))))


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def _holding(value: Any, depth: int) -> Iterator[FunctionType]:
    """Yield the functions in a value that hold a module or a weight."""
    if isinstance(value, partial):
        value = (value.func, *value.args, *value.keywords.values())  # which copies have copies of
    if isinstance(value, Mapping | list | tuple) and depth:
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _holding(each, depth - 1)
    if not isinstance(value, FunctionType) or not depth:
        return
    held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    held += _cells(value)
    if is_users(value.__code__) and any(map(_is_original, held)):  # torch.compile makes its own anew in copies
        yield value
    for each in held:
        yield from _holding(each, depth - 1)


def _is_original(value: Any) -> bool:
    owner = getattr(value, "__self__", None) if isinstance(value, MethodType) else value
    is_module = isinstance(owner, nn.Module) and any(True for _ in (*owner.parameters(), *owner.buffers()))
    return is_module or isinstance(value, nn.Parameter)
