"""Checks of the parts of models and clusters: names that can be printed, and objects of the right kind."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def printable(name: object, what: str) -> str:
    """Return a name without control characters, which could change what a terminal shows.

    Raises
    ------
    InputError
        If it is no text, or has a line break, a terminal escape or another control character.
    """
    if not isinstance(name, str):
        raise InputError(f"{what} must be text, not {shown(name)}")
    if found := _CONTROL.search(name):
        raise InputError(f"{what} is {shown(name)}, with the control character {found[0]!a}; take it out")
    return name


def each_a(values: object, kind: type, what: str) -> None:
    """Refuse anything but a sequence of objects of one kind.

    Raises
    ------
    InputError
        With the first that is none.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection):
        raise InputError(f"{what} must be a tuple of {kind.__name__}, not {shown(values)}")
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            raise InputError(f"{what} must be a tuple of {kind.__name__}, and number {number} is {shown(value)}")


def mapping(value: object, what: str) -> Mapping[Any, Any]:
    """Return a mapping.

    Raises
    ------
    InputError
        If it is none.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a mapping, not {shown(value)}")
    return value
