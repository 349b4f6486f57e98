"""Checks of the parts of models and clusters: names that can be printed, and objects of the right kind."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.figures import CONTROL, shown


def printable(name: object, what: str) -> str:
    """Return a name without control characters, which could change what a terminal shows.

    Raises
    ------
    InputError
        If it is no text, or has a line break, a terminal escape or another control character.
    """
    if not isinstance(name, str):
        raise InputError(f"{what} must be text, not {shown(name)}")
    if found := CONTROL.search(name):
        raise InputError(f"{what} is {shown(name)}, with the control character {found[0]!a}; take it out")
    return name


def printable_path(path: Path) -> None:
    """Refuse a path with control characters; bytes of a file's name that are no text are none of them.

    Raises
    ------
    InputError
        If it has some, or cannot be the name of a file.
    """
    try:
        printable(os.fsencode(path).decode(errors="replace"), "the path")
    except UnicodeEncodeError as error:
        raise InputError(f"the path is {shown(str(path))}, which cannot be the name of a file") from error


def each_a(values: object, kind: type, what: str) -> None:
    """Refuse anything but a sequence of objects of one kind.

    Raises
    ------
    InputError
        With the first that is none.
    """
    if isinstance(values, str | bytes | bytearray | memoryview) or not isinstance(values, Sequence):
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


def switch(value: object, what: str) -> bool:
    """Return a value that must be True or False.

    Raises
    ------
    InputError
        If it is neither.
    """
    if not isinstance(value, bool):
        raise InputError(f"{what} is either True or False, not {shown(value)}")
    return value
