"""Values of a job's options, as the program and the Python API give them: several with commas between, or as a tuple.

========================== ========================================== ===========================
option                     text                                       Python
========================== ========================================== ===========================
depths, replicas …         ``'2,4'``                                  ``2``, ``(2, 4)``
schedules, no_cut_after    ``'gpipe,1f1b-so'``                        ``('gpipe', '1f1b-so')``
together                   ``'l0,l2'``, ``('l0,l2', 'l5,l6')``        ``(('l0', 'l2'),)``
pin                        ``'head=d3'``, ``('head=d3', 'l0=d0')``    ``{'head': 'd3'}``
========================== ========================================== ===========================
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown, whole
from pipeplan.core.wording import hint

Member = TypeVar("Member", bound=StrEnum)

_NUMBERS = re.compile(r"-?[0-9]{1,30}(,-?[0-9]{1,30})*")


def member(value: Any, name: str, members: type[Member]) -> Member:
    """Return the member of an enumeration that a value names."""
    return members(known(value, name, [each.value for each in members]))


def known(value: Any, name: str, choices: Iterable[str]) -> str:
    """Return a text that must be one of the known ones; the error names those like it."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        hinted = hint(value, choices) if isinstance(value, str) else ""
        raise InputError(f"{name} {shown(value)} is not known; choose from {', '.join(choices)}{hinted}")
    return value


def numbers(value: Any, name: str, what: str, least: int, most: int) -> tuple[int, ...]:
    """Return whole numbers without duplicates; ``what`` they are stands in errors."""
    if isinstance(value, str):
        if not _NUMBERS.fullmatch(value):
            raise InputError(f"{name} {shown(value)}: write numbers with commas between, like 4,8,16")
        value = tuple(map(int, value.split(",")))
    single = not isinstance(value, list | tuple | range)
    if not single and value and {*map(type, value)} == {int} and least <= min(value) <= max(value) <= most:
        return tuple(dict.fromkeys(value))  # sizes of stages may be thousands
    return tuple(dict.fromkeys(whole(each, what, least, most) for each in ((value,) if single else value)))


def names(value: Any, name: str) -> tuple[str, ...]:
    """Return names without duplicates."""
    found = value.split(",") if isinstance(value, str) else _several(value, name)
    for each in found:
        if not isinstance(each, str) or not each:
            raise InputError(f"{name} takes names, and {shown(each)} is none")
    return tuple(dict.fromkeys(found))


def groups(value: Any, name: str) -> tuple[tuple[str, ...], ...]:
    """Return groups of names."""
    rows = (value,) if isinstance(value, str) else _several(value, name)
    found = tuple(names(each, name) for each in rows)
    if any(not each for each in found):
        raise InputError(f"{name} names no layer; name those that one stage must hold, or leave it out")
    return found


def pins(value: Any) -> tuple[tuple[str, str], ...]:
    """Return each pinned layer with its place, without duplicates.

    Raises
    ------
    InputError
        If a layer has two places.
    """
    rows = tuple(value.items()) if isinstance(value, Mapping) else value
    found: dict[str, str] = {}
    for pin in (rows,) if isinstance(rows, str) else _several(rows, "pin"):
        layer, where = _pin(pin)
        if found.setdefault(layer, where) != where:
            raise InputError(
                f"layer {layer!r} is pinned to {found[layer]!r} and to {where!r}; a layer has one place, keep one of "
                "the two"
            )
    return tuple(found.items())


def _pin(pin: Any) -> tuple[str, str]:
    pair = tuple(pin.rpartition("=")[::2]) if isinstance(pin, str) else _several(pin, "pin")
    if len(pair) != 2 or not all(isinstance(each, str) and each for each in pair):
        raise InputError(f"pin {shown(pin)}: write a layer and where it must lie, like head=d3 or head=v100-16gb")
    return pair[0], pair[1]


def _several(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} takes one or several values, not {shown(value)}")
    return tuple(value)
