"""Schedule families: generators of action lists.

`FAMILIES` give every stage devices of its own and support replicas. `PLACED` families choose the device of each stage,
may put several stages on a device and may split backwards. To add one, write a file with a picture and ``FAMILIES``, a
tuple of `Family` (``write`` and ``in_flight``) or of `PlacedFamily` (``orders``), and add its name to `_FILES` or
`_PLACED_FILES`. Other packages announce a `Family` as an entry point ``pipeplan.schedules``; it is searched where it is
named, and what it writes is checked each time.

A family fixes the number of micro-batches that each stage holds. `one_forward_one_backward` writes the 1F1B lists for
any numbers that do not deadlock.
"""

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.plug_ins import Registry, refuse
from pipeplan.core.wording import hint
from pipeplan.schedules.alternate import first_deadlock, one_forward_one_backward
from pipeplan.schedules.family import FOUND, Family, alternates, checked
from pipeplan.schedules.placed import PlacedFamily
from pipeplan.schedules.slices import JOINED, SLICED, SPLIT, asked_sliced_families, sliced_families

__all__ = [
    "FAMILIES",
    "JOINED",
    "PLACED",
    "SLICED",
    "SPLIT",
    "Family",
    "PlacedFamily",
    "asked_sliced_families",
    "families_in_rounds",
    "family",
    "first_deadlock",
    "one_forward_one_backward",
    "sliced_families",
]

_FILES = ("gpipe", "alternate")
_PLACED_FILES = ("interleaved", "zero_bubble", "vee", "chimera")


def _adapted(found: Any, name: str, _: str) -> Family:
    if not isinstance(found, Family):
        raise InputError(f"it is no pipeplan.schedules.Family: {shown(found)}")
    if found.name != name or alternates(name) or name in (*PLACED, *SLICED, "any", FOUND):
        raise InputError(
            f"the family calls itself {found.name!r}: a name of its own is needed, without '1f1b' in front"
        )
    return checked(found)


def _broken(name: str, why: str) -> Family:
    return Family(name, partial(refuse, why=why), partial(refuse, why=why), frozenset(), why)


FAMILIES: Registry[Family] = Registry(
    "pipeplan.schedules",
    (each for file in _FILES for each in import_module(f"{__name__}.{file}").FAMILIES),
    _adapted,
    _broken,
)
"""Families of stages with devices of their own, by name; `pipeplan.solve` chooses from them."""

PLACED: Mapping[str, PlacedFamily] = MappingProxyType(
    {each.name: each for file in _PLACED_FILES for each in import_module(f"{__name__}.{file}").FAMILIES}
)
"""Families that place stages themselves, by name."""


def families_in_rounds(rounds: int, turns: bool) -> tuple[PlacedFamily, ...]:
    """Return the families that run so many stages on each device, in a V or in a loop, as no other family does."""
    return tuple(
        each
        for each in PLACED.values()
        if each.in_rounds and each.turns is turns
        if each.chunks == rounds or (each.chunks is None and rounds > 1)
    )


def family(name: str) -> Family:
    """Return the family of that name.

    Raises
    ------
    InputError
        If there is none; the text lists the known ones.
    """
    if name in SLICED:
        raise InputError(f"schedule family {name!r} runs token slices; say how many with slices (--slices 1,4,16)")
    if name in PLACED:
        raise InputError(
            f"schedule family {name!r} places stages itself ({PLACED[name].summary}); plans choose from "
            f"{', '.join(FAMILIES)}; pipeplan.schedules.PLACED[{name!r}].write(devices, micro_batches) writes its lists"
        )
    if name not in FAMILIES:
        known = "; ".join(f"{each.name} ({each.summary})" for each in FAMILIES.values())
        raise InputError(f"schedule family {name!r} is not known{hint(name, FAMILIES)}; choose one of: {known}")
    return FAMILIES[name]
