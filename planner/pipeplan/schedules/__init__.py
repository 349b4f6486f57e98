"""Schedule families: generators of action lists.

`FAMILIES` give every stage devices of its own and support replicas. `PLACED` families choose the device of each stage,
may put several stages on a device and may split backwards. To add one, write a file with a picture and ``FAMILIES``, a
tuple of `Family` (``write`` and ``in_flight``) or of `PlacedFamily` (``orders``), and add its name to `_FILES` or
`_PLACED_FILES`.

A family fixes the number of micro-batches that each stage holds. `one_forward_one_backward` writes the 1F1B lists for
any numbers that do not deadlock.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from pipeplan.core.errors import InputError
from pipeplan.core.wording import hint
from pipeplan.schedules.alternate import first_deadlock, one_forward_one_backward
from pipeplan.schedules.family import Family
from pipeplan.schedules.placed import PlacedFamily

__all__ = ["FAMILIES", "PLACED", "Family", "PlacedFamily", "family", "first_deadlock", "one_forward_one_backward"]

_FILES = ("gpipe", "alternate")
_PLACED_FILES = ("interleaved", "zero_bubble", "vee", "chimera")

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {each.name: each for file in _FILES for each in import_module(f"{__name__}.{file}").FAMILIES}
)
"""Families of stages with devices of their own, by name; `pipeplan.solve` chooses from them."""

PLACED: Mapping[str, PlacedFamily] = MappingProxyType(
    {each.name: each for file in _PLACED_FILES for each in import_module(f"{__name__}.{file}").FAMILIES}
)
"""Families that place stages themselves, by name."""


def family(name: str) -> Family:
    """Return the family of that name.

    Raises
    ------
    InputError
        If there is none; the text lists the known ones.
    """
    if name in PLACED:
        raise InputError(
            f"schedule family {name!r} places stages itself ({PLACED[name].summary}); plans choose from "
            f"{', '.join(FAMILIES)}; pipeplan.schedules.PLACED[{name!r}].write(devices, micro_batches) writes its lists"
        )
    if name not in FAMILIES:
        known = "; ".join(f"{each.name} ({each.summary})" for each in FAMILIES.values())
        raise InputError(f"schedule family {name!r} is not known{hint(name, FAMILIES)}; choose one of: {known}")
    return FAMILIES[name]
