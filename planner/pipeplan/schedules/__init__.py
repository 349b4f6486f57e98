"""Schedule families: one file each, every one a writer of action lists.

To add one, write its file (a picture, ``in_flight``, ``write``, a `Family`) and list it here. A family may place
several stages on a device: a `Schedule` only says which device runs which action.

Beside the families, which fix how many micro-batches each stage holds, `one_forward_one_backward` writes the 1F1B lists
for any numbers that do not deadlock.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pipeplan.errors import InputError
from pipeplan.schedules import fbp, gpipe, sno, so, streamed
from pipeplan.schedules.alternate import first_deadlock, one_forward_one_backward
from pipeplan.schedules.family import Family

__all__ = ["FAMILIES", "Family", "family", "first_deadlock", "one_forward_one_backward"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {module.FAMILY.name: module.FAMILY for module in (gpipe, sno, so, streamed, fbp)}
)
"""Every family by its name."""


def family(name: str) -> Family:
    """The family of that name.

    Raises
    ------
    InputError
        If there is none; the text lists those that are.
    """
    if name not in FAMILIES:
        known = "; ".join(f"{each.name} ({each.summary})" for each in FAMILIES.values())
        raise InputError(f"schedule family {name!r} is not known; choose one of: {known}")
    return FAMILIES[name]
