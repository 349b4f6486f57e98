"""`GroupedAxis`: an axis of a parameter that is split group by group, like queries, keys and values in one matrix.

::

    axis of 12, groups 1, 1, 1    q q q q k k k k v v v v
    member 0 of a team of 2       q q     k k     v v
    member 1                          q q     k k     v v

Equal shards of the whole axis would give member 0 all queries and half of the keys, which are no heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from pipeplan.core.errors import InputError
from pipeplan.core.figures import whole


@dataclass(frozen=True, slots=True)
class GroupedAxis:
    """An axis along which each member of a team has its part of every group.

    Attributes
    ----------
    axis : int
    groups : tuple of int
        Relative lengths of the groups, one behind the other; kept in lowest terms.

    Raises
    ------
    InputError
        If there are fewer than two groups, or one has no length.
    """

    axis: int
    groups: tuple[int, ...]

    def __post_init__(self) -> None:
        check_groups(self.groups, f"axis {self.axis}")
        common = gcd(*self.groups)
        object.__setattr__(self, "groups", tuple(each // common for each in self.groups))


ShardAxis: TypeAlias = int | GroupedAxis
"""Along which axis a parameter is split: into equal shards of it, or of each of its groups."""


def axis_and_groups(along: ShardAxis) -> tuple[int, tuple[int, ...]]:
    """Return an axis, and the relative lengths of its groups, if it has any."""
    return (along.axis, along.groups) if isinstance(along, GroupedAxis) else (along, ())


def check_groups(groups: Sequence[int], what: str) -> None:
    """Refuse relative lengths of groups that are none."""
    for each in groups:
        whole(each, f"{what}: the relative length of a group", 1)
    if len(groups) < 2:
        raise InputError(f"{what} has {len(groups) or 'no'} group; give the relative lengths of two or more, or none")


def group_lengths(length: int, groups: Sequence[int]) -> tuple[int, ...] | None:
    """Return the lengths of the groups of an axis of ``length``; None if they are no whole numbers."""
    total = sum(groups)
    return None if length % total else tuple(length // total * each for each in groups)


def group_ranges(length: int, groups: Sequence[int], parts: int, number: int) -> list[tuple[int, int]] | None:
    """Return first index and end of the part of each group that one of several members has, from 0.

    None if the groups cannot be divided evenly.
    """
    lengths = group_lengths(length, groups)
    if lengths is None or any(each % parts for each in lengths):
        return None
    found, first = [], 0
    for each in lengths:
        own = each // parts
        found.append((first + number * own, first + (number + 1) * own))
        first += each
    return found
