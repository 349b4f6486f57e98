"""`Rewind`: a module's state before a forward, to begin every micro-batch with it."""

import copy
import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_TORCHS = frozenset(vars(nn.Module()))
"""Attributes that every module has from torch."""
_DEEPEST = 4
"""Depth to which attributes are copied inside lists, mappings and objects."""
_REGISTRIES = ("_parameters", "_buffers", "_modules")


class Rewind:
    """Buffers and attributes of a module, Python's and numpy's random states, as they were when this was made.

    Replicas of a stage have buffers of their own, and see only some of the micro-batches: outputs that depend on how
    many came before (spectral norm, running codes) can be compared only if each micro-batch begins with the same state.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        Their buffers are restored, those that they share too. Their parameters are left alone.
    counting : sequence of torch.nn.Module
        Modules whose attributes are restored too.
    """

    def __init__(self, modules: Sequence[nn.Module], counting: Sequence[nn.Module] = ()) -> None:
        self._held = [(part, dict(part._buffers)) for module in modules for part in module.modules()]
        tensors = [tensor for _, buffers in self._held for tensor in buffers.values() if tensor is not None]
        self._values = {id(tensor): (tensor, tensor.detach().clone()) for tensor in tensors}
        parts = [part for module in counting for part in module.modules()]
        self._attributes = [(part, attributes_in(part)) for part in parts]
        self._copies = copied_attributes(self._attributes)
        self._numbers = _numbers()

    def back(self) -> None:
        """Restore the state. Buffers become new tensors, since autograd may have saved the present ones."""
        copies = copied_attributes(self._copies)
        self._put({key: values.clone() for key, (_, values) in self._values.items()}, copies)

    def end(self) -> None:
        """Restore the state with the tensors themselves, for those that have called `back` before every forward."""
        self._put({key: tensor for key, (tensor, _) in self._values.items()}, self._attributes)

    def _put(self, tensors: dict[int, Tensor], everywhere: "Attributes") -> None:
        for part, buffers in self._held:
            part._buffers.update({name: None if old is None else tensors[id(old)] for name, old in buffers.items()})
        for part, attributes in everywhere:
            put_attributes(part, attributes)
        _restore(self._numbers)


Attributes = Sequence[tuple[nn.Module, dict[str, Any]]]
"""Modules with what they have beside their parameters, buffers and submodules."""


def copied_attributes(attributes: Attributes) -> Attributes:
    """Return attributes with copies of what a forward may change inside: lists, mappings, objects, random generators.

    Objects that several modules hold stay one object. Tensors, modules and functions are not copied.
    """
    memo: dict[int, tuple[Any, Any]] = {}
    return [
        (part, {k: v if k in _TORCHS else _copied(v, memo, _DEEPEST) for k, v in values.items()})
        for part, values in attributes
    ]


def _copied(value: Any, memo: dict[int, tuple[Any, Any]], depth: int) -> Any:
    fixed = Tensor | nn.Module | type | ModuleType | FunctionType | MethodType | str | bytes | int | float | None
    if isinstance(value, fixed) or not depth:
        return value
    if id(value) not in memo:
        try:
            memo[id(value)] = value, _copy_of(value, memo, depth - 1)
        except Exception:  # what cannot be copied, like a lock
            memo[id(value)] = value, value
    return memo[id(value)][1]


def _copy_of(value: Any, memo: dict[int, tuple[Any, Any]], depth: int) -> Any:
    """Return a copy of a value, which holds copies of what it holds."""
    if isinstance(value, torch.Generator):
        return value.clone_state()
    deep = isinstance(value, random.Random | Iterator)  # what an iterator goes through goes on with it
    if deep or hasattr(value, "bit_generator") or hasattr(value, "get_state"):
        return copy.deepcopy(value)
    if isinstance(value, tuple):
        parts = [_copied(part, memo, depth) for part in value]
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else tuple(parts)
    made = copy.copy(value)
    memo[id(value)] = value, made  # it may hold itself
    if isinstance(value, dict):
        made.update({key: _copied(part, memo, depth) for key, part in value.items()})
    elif isinstance(value, list | deque):
        for place, part in enumerate(value):
            made[place] = _copied(part, memo, depth)
    elif hasattr(value, "__dict__"):
        vars(made).update({name: _copied(part, memo, depth) for name, part in vars(value).items()})
    return made


def attributes_in(part: nn.Module) -> dict[str, Any]:
    """Return what a module has beside its parameters, buffers and submodules."""
    return {name: value for name, value in vars(part).items() if name not in _REGISTRIES}


def put_attributes(part: nn.Module, attributes: dict[str, Any]) -> None:
    """Give a module these attributes, and no others."""
    present = attributes_in(part)
    for name in present.keys() - attributes.keys():
        del part.__dict__[name]
    part.__dict__.update({name: value for name, value in attributes.items() if present.get(name) is not value})


Numbers = tuple[Any, Any]
"""Random states of Python and numpy."""


def _numbers() -> Numbers:
    return random.getstate(), sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None


def _restore(numbers: Numbers) -> None:
    random.setstate(numbers[0])
    if numbers[1] is not None:
        sys.modules["numpy"].random.set_state(numbers[1])


@contextmanager
def preserved_numbers() -> Iterator[None]:
    """Context that restores Python's and numpy's random states at its end."""
    numbers = _numbers()
    try:
        yield
    finally:
        _restore(numbers)
