"""`ParameterShard`: sharded parameters, selected by patterns of their names."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from pipeplan.core.errors import InputError
from pipeplan.core.wording import some
from pipeplan_executor.sharding.declared import TensorParallel


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
    """

    shape: tuple[int, ...]
    axis: int
    parts: int
    number: int
    within: "ParameterShard | None" = None

    @property
    def offsets(self) -> tuple[int, ...]:
        """First index of the shard along each axis."""
        corner = (0,) * len(self.shape) if self.within is None else self.within.offsets
        return tuple(first + self._range[0] * (axis == self.axis) for axis, first in enumerate(corner))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Length of the shard along each axis."""
        first, end = self._range
        return tuple(end - first if axis == self.axis else size for axis, size in enumerate(self._divided))

    @property
    def _divided(self) -> tuple[int, ...]:
        return self.shape if self.within is None else self.within.sizes

    @property
    def _range(self) -> tuple[int, int]:
        whole = self._divided[self.axis]
        length = -(-whole // self.parts)
        return min(self.number * length, whole), min((self.number + 1) * length, whole)

    def of(self, whole: Tensor) -> Tensor:
        """Return the shard of a whole tensor, in its own memory."""
        first, end = self._range
        divided = whole if self.within is None else self.within.of(whole)
        part = divided.narrow(self.axis, first, end - first)
        return part.clone(memory_format=torch.contiguous_format)


def find_shards(
    model: nn.Module,
    shards: Mapping[str, int] | None,
    wanted: TensorParallel,
    tensor_rank: int = 0,
    among: Collection[str] | None = None,
) -> dict[str, ParameterShard]:
    """Return the shards of a tensor-parallel rank, by each name of a parameter in the unsplit model.

    Parameters
    ----------
    shards : mapping of str to int, optional
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
    if not shards and wanted.sequence:
        return {}
    if not shards:
        raise InputError(
            f"no shards are declared for {type(model).__name__} on {wanted.size} processes per rank: give the axis "
            'of each sharded parameter, like Workload(..., shards={"block*.widen.*": 0, "block*.narrow.weight": 1})'
        )
    axes = {name: own for name, own in _axes(model, shards).items() if among is None or name in among}
    _check_even(axes, wanted.size)
    _check_recurrent(model, list(axes))
    return {name: ParameterShard(tuple(p.shape), axis, wanted.size, tensor_rank) for name, (p, axis) in axes.items()}


def _axes(model: nn.Module, shards: Mapping[str, int]) -> dict[str, tuple[Tensor, int]]:
    """Return each sharded parameter and its axis, under each of its names."""
    known = dict(model.named_parameters(remove_duplicate=False))
    said: dict[int, tuple[int, str]] = {}
    for pattern, axis in shards.items():
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
            own = axis % parameter.dim()
            other, earlier = said.setdefault(id(parameter), (own, pattern))
            if other != own:
                raise InputError(
                    f"{name} is sharded along axis {other} by {earlier!r} and along axis {own} by {pattern!r}; a "
                    "parameter is sharded along one, also where several layers share it"
                )
    return {name: (known[name], said[id(known[name])][0]) for name in known if id(known[name]) in said}


def _check_even(axes: Mapping[str, tuple[Tensor, int]], parts: int) -> None:
    lengths = {name: (axis, parameter.shape[axis]) for name, (parameter, axis) in axes.items()}
    uneven = [f"{name} ({length} along axis {axis})" for name, (axis, length) in lengths.items() if length % parts]
    if uneven:
        raise InputError(
            f"{some(uneven)} cannot be divided into {parts} equal shards; choose a number of processes that divides "
            "them, or leave them whole"
        )


def _check_recurrent(model: nn.Module, names: Sequence[str]) -> None:
    found = [name for name in names if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.RNNBase)]
    if found:
        raise InputError(f"{some(found)}: recurrent layers compute with all their matrices at once; do not shard these")
