"""Schedule families: one file each, every one a writer of action lists.

`FAMILIES` give every stage devices of its own and know replicas; `PLACED` families say which device runs which stage,
may give a device several and may split backwards. To add one, write its file (a picture, and ``in_flight`` and
``write`` of a `Family` or ``orders`` of a `PlacedFamily`) and list it here.

Beside the families, which fix how many micro-batches each stage holds, `one_forward_one_backward` writes the 1F1B lists
for any numbers that do not deadlock.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pipeplan.core.errors import InputError
from pipeplan.schedules import (
    chimera,
    dualpipe_v,
    fbp,
    gpipe,
    interleaved,
    looped,
    sno,
    so,
    streamed,
    v_half,
    v_min,
    zb_h1,
    zb_h2,
    zb_v,
)
from pipeplan.schedules.alternate import first_deadlock, one_forward_one_backward
from pipeplan.schedules.family import Family
from pipeplan.schedules.placed import PlacedFamily

__all__ = ["FAMILIES", "PLACED", "Family", "PlacedFamily", "family", "first_deadlock", "one_forward_one_backward"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {module.FAMILY.name: module.FAMILY for module in (gpipe, sno, so, streamed, fbp)}
)
"""Every family of stages with devices of their own, by its name: those that `pipeplan.solve` chooses from."""

PLACED: Mapping[str, PlacedFamily] = MappingProxyType(
    {
        module.FAMILY.name: module.FAMILY
        for module in (interleaved, looped, zb_h1, zb_h2, zb_v, v_half, v_min, dualpipe_v, chimera)
    }
)
"""Every family that places stages itself, by its name."""


def family(name: str) -> Family:
    """The family of that name.

    Raises
    ------
    InputError
        If there is none; the text lists those that are.
    """
    if name in PLACED:
        raise InputError(
            f"schedule family {name!r} places stages itself ({PLACED[name].summary}); plans choose from "
            f"{', '.join(FAMILIES)}; pipeplan.schedules.PLACED[{name!r}].write(devices, micro_batches) writes its lists"
        )
    if name not in FAMILIES:
        known = "; ".join(f"{each.name} ({each.summary})" for each in FAMILIES.values())
        raise InputError(f"schedule family {name!r} is not known; choose one of: {known}")
    return FAMILIES[name]
