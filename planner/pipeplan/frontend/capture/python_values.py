"""Values of Python that a forward may change: random states, and attributes of modules, in a form to compare."""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType

from torch import Tensor, nn

from pipeplan.frontend.capture.private import pytree

_TORCHS = frozenset(vars(nn.Module()))
"""Attributes that every module has from torch: parameters, buffers, hooks, mode."""
_SIMPLE = (bool, int, float, complex, str, list, dict, set, deque, random.Random)
"""Kinds of values outside a module that are compared."""
_DEEPEST = 4
"""Depth to which attributes are compared inside lists, mappings and objects."""


def random_numbers() -> dict[str, object]:
    """Return the states of Python's and numpy's global random numbers, by whose they are."""
    found: dict[str, object] = {"Python's": random.getstate()}
    if "numpy" in sys.modules:
        _, numbers, *place = sys.modules["numpy"].random.get_state(legacy=True)
        found["numpy's"] = (numbers.tobytes(), *place)
    return found


def values_outside(module: nn.Module, is_own: Callable[[CodeType], bool]) -> dict[str, object]:
    """Return what the user's functions that a module may call read outside it: globals, closures, class attributes.

    Parameters
    ----------
    is_own : callable
        Whether code is the user's own, and not of a package.
    """
    found: dict[str, object] = {}
    seen: set[object] = set()
    for part in module.modules():
        for kind in type(part).__mro__:
            _class_values(kind, found, seen, is_own)
        for value in vars(part).values():
            _outside(value, found, seen, is_own)
    return found


def _class_values(kind: type, found: dict[str, object], seen: set[object], is_own: Callable[[CodeType], bool]) -> None:
    if kind in seen or kind.__module__.partition(".")[0] in ("torch", "builtins"):
        return
    seen.add(kind)
    functions = [getattr(value, "__func__", value) for value in vars(kind).values()]
    functions = [value for value in functions if isinstance(value, FunctionType)]
    if not any(is_own(function.__code__) for function in functions):
        return
    for name, value in vars(kind).items():
        if isinstance(value, _SIMPLE) and not name.startswith("__"):
            found[f"{kind.__qualname__}.{name}"] = _frozen(value, {}, _DEEPEST)
    for function in functions:
        _outside(function, found, seen, is_own)


def _outside(value: object, found: dict[str, object], seen: set[object], is_own: Callable[[CodeType], bool]) -> None:
    """Add what a function reads outside it, and the functions that it may call."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, FunctionType) or function in seen or not is_own(function.__code__):
        return
    seen.add(function)
    read = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # an empty cell
            read[name] = cell.cell_contents
    for name, each in read.items():
        if isinstance(each, _SIMPLE):
            found[f"{name} of {function.__qualname__}"] = _frozen(each, {}, _DEEPEST)
        elif isinstance(each, type):
            _class_values(each, found, seen, is_own)
        else:
            _outside(each, found, seen, is_own)


def attributes_of(module: nn.Module) -> dict[str, object]:
    """Return the attributes of all submodules by path, without tensors and modules."""
    found: dict[str, object] = {}
    seen: dict[int, object] = {}
    for path, part in module.named_modules():
        found |= {f"{path}.{name}".lstrip("."): value for name, value in own_attributes(part, seen).items()}
    return found


def kept_tensors(module: nn.Module) -> list[int]:
    """Return which tensors a module keeps in attributes, in lists and mappings too, beside parameters and buffers."""
    held = [{name: value for name, value in vars(part).items() if name not in _TORCHS} for part in module.modules()]
    return [id(leaf) for leaf in pytree.tree_leaves(held) if isinstance(leaf, Tensor)]


def own_attributes(part: nn.Module, seen: dict[int, object] | None = None) -> dict[str, object]:
    """Return the attributes of one module without its submodules; ``seen``: what is known of objects, by id."""
    known = {} if seen is None else seen
    return {name: _frozen(value, known, _DEEPEST) for name, value in vars(part).items() if name not in _TORCHS}


def _frozen(value: object, seen: dict[int, object], depth: int) -> object:
    """Return what can be compared of a value after it has changed; the same for tensors, modules and functions."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Tensor | nn.Module | type | ModuleType | FunctionType | MethodType) or not depth:
        return type(value).__name__
    if id(value) not in seen:
        seen[id(value)] = type(value).__name__  # for objects that hold themselves
        seen[id(value)] = _inside(value, seen, depth - 1)
    return seen[id(value)]


def _inside(value: object, seen: dict[int, object], depth: int) -> object:
    if isinstance(value, random.Random):
        return value.getstate()
    state = getattr(getattr(value, "bit_generator", None), "state", None) or getattr(value, "get_state", None)
    if state is not None:
        return repr(state() if callable(state) else state)
    if isinstance(value, Iterator):  # where it is; a generator does not say
        with suppress(TypeError):
            return (type(value).__name__, _frozen(value.__reduce__()[1:], {}, _DEEPEST))
    if isinstance(value, Mapping):
        return tuple((repr(key), _frozen(each, seen, depth)) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return (type(value).__name__, len(value), *(_frozen(each, seen, depth) for each in value))
    if hasattr(value, "tobytes"):
        return hash(value.tobytes())
    held = getattr(value, "__dict__", None)
    return tuple((key, _frozen(each, seen, depth)) for key, each in held.items()) if held else type(value).__name__
