"""Models that differ in one number, made when they are asked for: ``gnmt-32`` has 32 LSTM layers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_LAYERS
from pipeplan.core.model import Model
from pipeplan.io.series.gnmt import gnmt

__all__ = ["SERIES", "member"]

SERIES: Mapping[str, Callable[[int], Model]] = MappingProxyType({"gnmt": gnmt})
"""A maker of models for each series; its number raises `InputError` where there is no such model."""


def member(name: str) -> Model | None:
    """The model of that name, like ``'gnmt-32'``; None where no series is called so."""
    series, _, number = name.rpartition("-")
    if series not in SERIES or not number.isdecimal():
        return None
    if len(number) > 9 or int(number) > MOST_LAYERS // 4:
        raise InputError(f"{series}-{number[:20]} would have too many layers; {MOST_LAYERS // 4} is the largest number")
    return SERIES[series](int(number))


def series_called(name: str) -> Callable[[int], Model]:
    """The maker of a series.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in SERIES:
        raise InputError(f"no series of models is called {name!r}; known are {', '.join(SERIES)}")
    return SERIES[name]
