"""Calls on the first rank or on all, with the result or the error on every rank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from pipeplan.core.errors import InputError
from pipeplan_executor.runtime.exchange import gather_bytes

T = TypeVar("T")
P = TypeVar("P", Path, Path | None)


def on_first(function: Callable[[], P]) -> P:
    """Call a function that returns a path on the first rank, and return its result, or raise its error, on every rank.

    Raises
    ------
    InputError
        On the other ranks, if the function raises on the first.
    """
    if dist.get_rank() == 0:
        try:
            made = function()
        except Exception as error:
            _gather({"error": str(error)})
            raise
        _gather({"path": None if made is None else str(made)})
        return made
    answer = _gather(None)[0]
    assert answer is not None
    if (failure := answer.get("error")) is not None:
        raise InputError(failure)
    path = answer["path"]
    return None if path is None else Path(path)  # type: ignore[return-value]


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
    everyone = _gather(None if failure is None else {"error": str(failure)})
    message = next((answer["error"] for answer in everyone if answer is not None), None)
    if message is not None:
        raise InputError(message) from failure
    return value  # type: ignore[return-value]


def _gather(answer: dict[str, str | None] | None) -> list[dict[str, str | None] | None]:
    return [json.loads(data) for data in gather_bytes(json.dumps(answer).encode())]
