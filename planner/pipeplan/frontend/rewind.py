"""`Rewind`: a module's state before a forward, to begin every micro-batch with it."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

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
        self._attributes = [(part, attributes_in(part)) for module in counting for part in module.modules()]
        self._numbers = _numbers()

    def back(self) -> None:
        """Restore the state. Buffers become new tensors, since autograd may have saved the present ones."""
        self._put({key: values.clone() for key, (_, values) in self._values.items()})

    def end(self) -> None:
        """Restore the state with the tensors themselves, for those that have called `back` before every forward."""
        self._put({key: tensor for key, (tensor, _) in self._values.items()})

    def _put(self, tensors: dict[int, Tensor]) -> None:
        for part, buffers in self._held:
            part._buffers.update({name: None if old is None else tensors[id(old)] for name, old in buffers.items()})
        for part, attributes in self._attributes:
            put_attributes(part, attributes)
        _restore(self._numbers)


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
