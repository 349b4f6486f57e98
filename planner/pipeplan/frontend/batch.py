"""Batches: inputs or targets of several samples, as one tensor or a tuple, list or dict of tensors.

::

    {"tokens": (8, 64), "mask": (8, 64)}     flat: tokens, mask     two micro-batches of 4: two dicts of (4, 64)

The order of a tuple, or of a dict's keys, is the order in which the first layer takes the tensors.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from pipeplan.core.errors import InputError

Batch: TypeAlias = Any
"""A tensor, or a tuple, list or mapping of batches."""


def tensors(batch: Batch) -> tuple[Any, ...]:
    """All tensors of a batch, in order.

    Raises
    ------
    InputError
        If the batch holds anything except tensors.
    """
    return tuple(_leaves(batch, ""))


def _leaves(batch: Batch, where: str) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for name, part in batch.items():
            yield from _leaves(part, f"{where}[{name!r}]")
    elif isinstance(batch, tuple | list):
        for number, part in enumerate(batch):
            yield from _leaves(part, f"{where}[{number}]")
    elif hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch
    else:
        raise InputError(
            f"a batch holds {type(batch).__name__}{' at ' + where if where else ''}; it may hold tensors only, alone "
            "or in tuples, lists and dicts: leave out what is None, and give numbers to the module when it is built"
        )


def mapped(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """The same structure with every tensor changed; mappings become dicts."""
    if isinstance(batch, Mapping):
        return {name: mapped(part, change) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [mapped(part, change) for part in batch]
        if isinstance(batch, list):
            return parts
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return change(batch)


def samples(batch: Batch) -> int:
    """Number of samples of a batch: the first axis of every tensor.

    Raises
    ------
    InputError
        If the tensors do not agree, or one has no axis.
    """
    sizes = {len(tensor) if tensor.shape else None for tensor in tensors(batch)}
    if len(sizes) != 1 or None in sizes:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(batch)) or "nothing"
        raise InputError(f"the first axis of every tensor of a batch must count its samples; the shapes are {shapes}")
    return int(sizes.pop())  # type: ignore[arg-type]


def split(batch: Batch, size: int) -> list[Batch]:
    """Split a batch into batches of ``size`` samples, the last one maybe smaller; they share its memory."""
    return [mapped(batch, partial(_rows, start, start + size)) for start in range(0, samples(batch), size)]


def _rows(start: int, end: int, tensor: Any) -> Any:
    return tensor[start:end]


def call(module: Any, inputs: Batch) -> Any:
    """Call the module: a tuple or list gives its arguments, a mapping its keyword arguments."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
