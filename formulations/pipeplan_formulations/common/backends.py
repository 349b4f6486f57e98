"""The door to a problem's backends: one module each, named for it, imported when it is asked for."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def backend_of(package: str, name: str, known: Sequence[str]) -> Any:
    """The module ``name`` of a package, whose ``solve`` answers.

    Raises
    ------
    ValueError
        If it is none of those known.
    """
    if name not in known:
        raise ValueError(f"backend {name!r} is not known; choose from {', '.join(known)}")
    return import_module(f"{package}.{name}")
