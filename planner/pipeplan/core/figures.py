"""Checks of numbers given to the Python API: integers or finite floats, within limits."""

import re
from dataclasses import fields, is_dataclass
from math import inf, isfinite
from numbers import Integral, Real
from typing import TypeVar

from pipeplan.core.errors import InputError

Thing = TypeVar("Thing")

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that change what a terminal shows (line breaks, escapes, directions of writing), and halves of pairs."""
LARGEST = 2**62
"""The largest time (nanoseconds), size (bytes) or rate (per second): 146 years, 4 EiB. It fits the 64-bit integers of
the solvers."""
MOST_LAYERS = 10**5
"""Largest number of layers of a model."""
MOST_DEVICES = 2**16
"""Largest number of devices of a cluster."""
MOST_SAMPLES = 2**31
"""Largest number of samples of a batch."""
_LONG = 10_000
"""Values within one value from which on it is not shown in messages."""


def whole(value: object, what: str, least: int = 0, most: int = LARGEST) -> int:
    """Return the value as an integer.

    Raises
    ------
    InputError
        If it is not an integer, or lies outside the limits; the text names it ``what``.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InputError(f"{what} must be a whole number, not {shown(value)}")
    number = int(value)
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most}"
        raise InputError(f"{what} must be {limit}, not {shown(number)}")
    return number


def real(value: object, what: str, least: float = 0.0, most: float = inf, *, above: bool = False) -> float:
    """Return the value as a finite float; with ``above`` it must exceed ``least``.

    Raises
    ------
    InputError
        If it is not a finite number, or lies outside the limits; the text names it ``what``.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{what} must be a number, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    limit = f"{'above' if above else 'at least'} {least:g}"
    if most < inf:
        limit += f" and at most {most:g}"
    if not isfinite(number) or number < least or number > most or (above and number == least):
        raise InputError(f"{what} must be a finite number {limit}, not {shown(value)}")
    return number


def plain(value: Thing) -> Thing:
    """Return a frozen dataclass whose numbers are Python's own: sums of numpy's wrap around beyond 64 bits."""
    assert is_dataclass(value)
    for field in fields(value):
        number = getattr(value, field.name)
        if type(number) in (int, float, bool, str, tuple):
            continue
        if isinstance(number, Integral):
            object.__setattr__(value, field.name, int(number))
        elif isinstance(number, float):
            object.__setattr__(value, field.name, float(number))
    return value


def shown(value: object) -> str:
    """Format a value for messages, without control characters; long numbers and long texts are abbreviated."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number beyond {'-' if value < 0 else ''}10^30"
    if not _is_short(value):
        return f"a {type(value).__name__} that is too long to be shown"
    try:
        text = CONTROL.sub(lambda found: ascii(found[0])[1:-1], repr(value))
    except Exception:  # it nests too deep, or is of a class that cannot be shown
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_short(value: object) -> bool:
    """Return whether a value holds few others; few objects that hold each other twice may have an endless text."""
    left, count = [value], 0
    while left and count < _LONG:
        part, count = left.pop(), count + 1
        if isinstance(part, dict):
            left += (*part, *part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            left += part
    return not left


def in_one_line(error: BaseException) -> str:
    """Return an error's kind and the first line of its text, without control characters that a file may bring."""
    return CONTROL.sub("?", f"{type(error).__name__}: {error}".partition("\n")[0])


def written(value: object) -> str:
    """Return a text, or a number as it is written; of anything else, and of long numbers, what `shown` returns."""
    return str(value) if isinstance(value, str | Real) and not isinstance(value, int) else shown(value)
