"""Calls on the first rank or on all, with the result or the error on every rank."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from pipeplan.core.errors import InputError

T = TypeVar("T")


def on_first(function: Callable[[], T]) -> T:
    """Call a function on the first rank and return its result, or raise its error, on every rank.

    Raises
    ------
    InputError
        On the other ranks, if the function raises on the first.
    """
    said: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            said = [function(), None]
        except Exception as error:
            dist.broadcast_object_list([None, str(error)])
            raise
    dist.broadcast_object_list(said)
    if said[1] is not None:
        raise InputError(said[1])
    return said[0]  # type: ignore[no-any-return]


def on_all(function: Callable[[], T]) -> T:
    """Call a function on every rank and return its result on this rank.

    Raises
    ------
    InputError
        On every rank, if it raises one on any of them: the error of the first such rank.
    """
    value: T | None = None
    failure: InputError | None = None
    try:
        value = function()
    except InputError as error:
        failure = error
    everyone: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, None if failure is None else str(failure))
    message = next((text for text in everyone if text is not None), None)
    if message is not None:
        raise InputError(message) from failure
    return value  # type: ignore[return-value]
