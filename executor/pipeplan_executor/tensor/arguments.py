"""The tensors among the arguments of an operation, alone or in lists. Torch's trees take longer than the operation."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with every tensor in it exchanged."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(mapped(change, each) for each in value)
    if isinstance(value, dict):
        return {key: mapped(change, each) for key, each in value.items()}
    return value


def tensors(value: Any) -> Iterator[DTensor]:
    """The tensors that lie on a team."""
    if isinstance(value, DTensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, dict):
        yield from tensors(tuple(value.values()))
