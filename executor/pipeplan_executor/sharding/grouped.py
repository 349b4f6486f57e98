"""`Grouped`: the placement of a tensor of which each rank has its part of every group along an axis.

::

    axis of 12, three groups      q q q q k k k k v v v v
    rank 0 of 2                   q q     k k     v v
    rank 1                            q q     k k     v v
    ranks one after the other     q q k k v v q q k k v v      equal shards of this are the ranks' parts

DTensor knows nothing of it: conversions are here and in `parts`, operations in `group_operations`, and what else gets
such a tensor gets the whole.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Placement, Shard

from pipeplan.core.grouped_axis import group_lengths, group_ranges


class Grouped(Placement):
    """Parts of the groups of an axis.

    Parameters
    ----------
    dim : int
        The axis.
    groups : sequence of int
        Relative lengths, in lowest terms.
    """

    def __init__(self, dim: int, groups: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.groups = dim, tuple(groups)

    def __eq__(self, other: object) -> bool:
        return type(other) is Grouped and (self.dim, self.groups) == (other.dim, other.groups)

    def __hash__(self) -> int:
        return hash((Grouped, self.dim, self.groups))

    def __repr__(self) -> str:
        return f"Grouped({self.dim}, {self.groups})"

    def lengths(self, whole: int) -> tuple[int, ...]:
        """Return the lengths of the groups of an axis of this length."""
        found = group_lengths(whole, self.groups)
        assert found is not None
        return found


def is_cut(how: Any) -> bool:
    """Return whether a placement splits an axis into shards, of the whole or of its groups."""
    return type(how) in (Shard, Grouped)


def along(how: Placement, dim: int) -> tuple[Placement, ...]:
    """Return shards of the same kind along another axis."""
    return (Grouped(dim, how.groups),) if type(how) is Grouped else (Shard(dim),)


def divides(how: Placement, length: int, parts: int) -> bool:
    """Return whether so many ranks have equal parts of an axis of this length."""
    if type(how) is Grouped:
        return group_ranges(length, how.groups, parts, 0) is not None
    return length % parts == 0


def part_of(whole: Tensor, how: Grouped, parts: int, rank: int) -> Tensor:
    """Return the part of a whole tensor that a rank has."""
    ranges = group_ranges(whole.shape[how.dim], how.groups, parts, rank)
    assert ranges is not None
    return torch.cat([whole.narrow(how.dim, first, end - first) for first, end in ranges], how.dim)


def by_rank(whole: Tensor, how: Grouped, parts: int) -> Tensor:
    """Return a whole tensor with the parts of the ranks one after the other."""
    return torch.cat([part_of(whole, how, parts, rank) for rank in range(parts)], how.dim)


def in_order(parts_of_ranks: Sequence[Tensor], how: Grouped) -> Tensor:
    """Return the whole tensor of these parts, one of each rank."""
    count = len(parts_of_ranks)
    own = [each // count for each in how.lengths(count * parts_of_ranks[0].shape[how.dim])]
    pieces = [part.split(own, how.dim) for part in parts_of_ranks]
    return torch.cat([piece[group] for group in range(len(own)) for piece in pieces], how.dim)
