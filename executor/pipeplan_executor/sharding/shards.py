"""`ParameterShard`: sharded parameters, selected by patterns of their names."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipeplan.core.errors import InputError
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis, axis_and_groups, group_lengths, group_ranges
from pipeplan.core.wording import some
from pipeplan_executor.sharding.declared import TensorParallel

Range: TypeAlias = tuple[int, int]
"""First index and end."""


@dataclass(frozen=True)
class ParameterShard:
    """One of several parts of a parameter along an axis, as `torch.chunk` divides it: the last may be shorter or empty.

    Attributes
    ----------
    shape : tuple of int
        Shape of the whole parameter.
    axis : int
    parts : int
        Number of shards.
    number : int
        Number of this shard, from 0.
    within : ParameterShard, optional
        The shard of the parameter that is divided once more; by default the whole is divided.
    groups : tuple of int
        Relative lengths of groups of the axis, each of which is divided evenly; by default the axis as such is divided.
    """

    shape: tuple[int, ...]
    axis: int
    parts: int
    number: int
    within: "ParameterShard | None" = None
    groups: tuple[int, ...] = ()

    @property
    def along(self) -> ShardAxis:
        """The axis, or groups of it."""
        return GroupedAxis(self.axis, self.groups) if self.groups else self.axis

    @property
    def ranges(self) -> tuple[tuple[Range, ...], ...]:
        """Along each axis, the ranges of the whole parameter that the shard has, in order."""
        divided = tuple(((0, size),) for size in self.shape) if self.within is None else self.within.ranges
        taken = tuple(own for each in self._taken for own in _narrowed(divided[self.axis], *each))
        return (*divided[: self.axis], taken, *divided[self.axis + 1 :])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Length of the shard along each axis."""
        length = sum(end - first for first, end in self._taken)
        return tuple(length if axis == self.axis else size for axis, size in enumerate(self._divided))

    @property
    def _divided(self) -> tuple[int, ...]:
        return self.shape if self.within is None else self.within.sizes

    @property
    def _taken(self) -> list[Range]:
        """The ranges along the axis of what is divided."""
        whole = self._divided[self.axis]
        if self.groups:
            found = group_ranges(whole, self.groups, self.parts, self.number)
            assert found is not None
            return found
        length = -(-whole // self.parts)
        return [(min(self.number * length, whole), min((self.number + 1) * length, whole))]

    def of(self, whole: Tensor) -> Tensor:
        """Return the shard of a whole tensor, in its own memory."""
        divided = whole if self.within is None else self.within.of(whole)
        parts = [divided.narrow(self.axis, first, end - first) for first, end in self._taken]
        return parts[0].clone(memory_format=torch.contiguous_format) if len(parts) == 1 else torch.cat(parts, self.axis)


def _narrowed(ranges: Sequence[Range], first: int, end: int) -> Iterator[Range]:
    """Yield the parts of ranges, laid out one behind the other, that lie from ``first`` to ``end``."""
    before = 0
    for start, stop in ranges:
        low, high = max(first - before, 0), min(end - before, stop - start)
        if low < high:
            yield start + low, start + high
        before += stop - start


def find_shards(
    model: nn.Module,
    shards: Mapping[str, ShardAxis] | None,
    wanted: TensorParallel,
    tensor_rank: int = 0,
    among: Collection[str] | None = None,
) -> dict[str, ParameterShard]:
    """Return the shards of a tensor-parallel rank, by each name of a parameter in the unsplit model.

    Parameters
    ----------
    shards : mapping of str to int or GroupedAxis, optional
        The axes that the workload declares; those of ``wanted`` replace them.
    among : collection of str, optional
        Names of the parameters that are sharded, if they match; by default all.

    Raises
    ------
    InputError
        If patterns match nothing or contradict each other, or a parameter cannot be sharded along its axis.
    """
    if wanted.size == 1:
        return {}
    shards = wanted.shards if wanted.shards is not None else shards
    if not shards:
        raise InputError(
            f"no shards are declared for {type(model).__name__} on {wanted.size} processes per rank: give the axis "
            'of each sharded parameter, like Workload(..., shards={"block*.widen.*": 0, "block*.narrow.weight": 1})'
        )
    axes = {name: own for name, own in _axes(model, shards).items() if among is None or name in among}
    _check_even(axes, wanted.size)
    _check_recurrent(model, list(axes))
    return {
        name: ParameterShard(tuple(parameter.shape), axis, wanted.size, tensor_rank, groups=groups)
        for name, (parameter, (axis, groups)) in axes.items()
    }


Along: TypeAlias = tuple[int, tuple[int, ...]]
"""An axis, and the relative lengths of its groups, if it has any."""


def _axes(model: nn.Module, shards: Mapping[str, ShardAxis]) -> dict[str, tuple[Tensor, Along]]:
    """Return each sharded parameter and its axis, under each of its names."""
    known = dict(model.named_parameters(remove_duplicate=False))
    said: dict[int, tuple[Along, str]] = {}
    for pattern, along in shards.items():
        axis, groups = axis_and_groups(along)
        names = [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise InputError(
                f"no parameter is called {pattern!r}, to be sharded along axis {axis}; the model has "
                f"{some(list(known))}"
            )
        for name in names:
            parameter = known[name]
            if not -parameter.dim() <= axis < parameter.dim():
                raise InputError(
                    f"{name} cannot be sharded along axis {axis} ({pattern!r}): its shape is {tuple(parameter.shape)}"
                )
            own = axis % parameter.dim(), groups
            other, earlier = said.setdefault(id(parameter), (own, pattern))
            if other != own:
                raise InputError(
                    f"{name} is sharded along {_told(*other)} by {earlier!r} and along {_told(*own)} by {pattern!r}; a "
                    "parameter is sharded along one, also where several layers share it"
                )
    return {name: (known[name], said[id(known[name])][0]) for name in known if id(known[name]) in said}


def _told(axis: int, groups: tuple[int, ...]) -> str:
    return f"axis {axis}" + (f" in groups {' : '.join(map(str, groups))}" if groups else "")


def _check_even(axes: Mapping[str, tuple[Tensor, Along]], parts: int) -> None:
    uneven = []
    for name, (parameter, (axis, groups)) in axes.items():
        length = parameter.shape[axis]
        lengths = group_lengths(length, groups) if groups else (length,)
        if lengths is None or any(each % parts for each in lengths):
            uneven.append(f"{name} ({length} along {_told(axis, groups)})")
    if uneven:
        raise InputError(
            f"{some(uneven)} cannot be divided into {parts} equal shards; choose a number of processes that divides "
            "them, or leave them whole"
        )


def _check_recurrent(model: nn.Module, names: Sequence[str]) -> None:
    found = [name for name in names if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.RNNBase)]
    if found:
        raise InputError(f"{some(found)}: recurrent layers compute with all their matrices at once; do not shard these")
