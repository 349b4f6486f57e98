"""The tensors among the arguments of an operation, alone or in lists. Torch's trees take longer than the operation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with every tensor in it exchanged."""
    if isinstance(value, Tensor):
        return change(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([change(each) if isinstance(each, Tensor) else _within(change, each) for each in value])
    return {key: mapped(change, each) for key, each in value.items()} if kind is dict else value


def _within(change: Callable[[Tensor], Any], value: Any) -> Any:
    return mapped(change, value) if type(value) in (tuple, list) else value


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[DTensor]:
    """Those that lie on a team."""
    found = []
    for each in (*args, *kwargs.values()):
        if isinstance(each, DTensor):
            found.append(each)
        elif type(each) in (tuple, list):
            found += [one for one in each if isinstance(one, DTensor)]
    return found
