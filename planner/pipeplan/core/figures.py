"""Checks of numbers given to the Python API: integers or finite floats, within limits."""

from math import inf, isfinite
from numbers import Integral, Real

from pipeplan.core.errors import InputError

LARGEST = 2**62
"""The largest time (nanoseconds), size (bytes) or rate (per second): 146 years, 4 EiB. It fits the 64-bit integers of
the solvers."""
MOST_LAYERS = 10**5
"""Largest number of layers of a model."""
MOST_DEVICES = 2**16
"""Largest number of devices of a cluster."""
MOST_SAMPLES = 2**31
"""Largest number of samples of a batch."""


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


def shown(value: object) -> str:
    """Format a value for messages; long numbers and long texts are abbreviated."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number beyond {'-' if value < 0 else ''}10^30"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
