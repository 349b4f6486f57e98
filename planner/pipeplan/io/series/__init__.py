"""Series of models that are generated from a number: ``gnmt-32`` has 32 LSTM layers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_LAYERS
from pipeplan.core.model import Model
from pipeplan.io.series.gnmt import gnmt

__all__ = ["SERIES", "series_model"]

SERIES: Mapping[str, Callable[[int], Model]] = MappingProxyType({"gnmt": gnmt})
"""The generator of each series; it raises `InputError` for a number without a model."""


def series_model(name: str) -> Model | None:
    """Return the model of that name, like ``'gnmt-32'``; None if there is no such series."""
    series, _, number = name.rpartition("-")
    if series not in SERIES or not number.isdecimal():
        return None
    if len(number) > 9 or int(number) > MOST_LAYERS // 4:
        raise InputError(f"{series}-{number[:20]} would have too many layers; {MOST_LAYERS // 4} is the largest number")
    return SERIES[series](int(number))


def series_called(name: str) -> Callable[[int], Model]:
    """Return the generator of a series.

    Raises
    ------
    InputError
        If there is no series of that name.
    """
    if name not in SERIES:
        raise InputError(f"no series of models is called {name!r}; known are {', '.join(SERIES)}")
    return SERIES[name]
