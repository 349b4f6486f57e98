"""Parameters that are cut: which ones, from patterns of their names, and each member's part (`ParameterShard`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from pipeplan.core.errors import InputError
from pipeplan.core.wording import some
from pipeplan_executor.sharding.declared import TensorParallel


@dataclass(frozen=True)
class ParameterShard:
    """Equal parts along one axis, of which one is here.

    Attributes
    ----------
    shape : tuple of int
        Of the whole parameter.
    axis : int
    parts : int
    number : int
        Which of them is here.
    """

    shape: tuple[int, ...]
    axis: int
    parts: int
    number: int

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the part begins, axis by axis."""
        return tuple(self.number * self._length if axis == self.axis else 0 for axis in range(len(self.shape)))

    @property
    def _length(self) -> int:
        return self.shape[self.axis] // self.parts

    def of(self, whole: Tensor) -> Tensor:
        """The part, in memory of its own."""
        part = whole.narrow(self.axis, self.number * self._length, self._length)
        return part.clone(memory_format=torch.contiguous_format)


def find_shards(
    model: nn.Module, shards: Mapping[str, int] | None, wanted: TensorParallel, member: int = 0
) -> dict[str, ParameterShard]:
    """A member's parts, by each name of a parameter in the unsplit model.

    ``shards`` are the workload's, which ``wanted`` may replace.

    Raises
    ------
    InputError
        If patterns match nothing or contradict each other, or what they match cannot be cut like that.
    """
    if wanted.size == 1:
        return {}
    shards = wanted.shards if wanted.shards is not None else shards
    if not shards:
        raise InputError(
            f"nobody says how {type(model).__name__} is cut for {wanted.size} processes a rank: give the axis "
            'of each parameter that is, like Workload(..., shards={"block*.widen.*": 0, "block*.narrow.weight": 1})'
        )
    axes = _axes(model, shards)
    _check_even(axes, wanted.size)
    _check_recurrent(model, list(axes))
    return {name: ParameterShard(tuple(p.shape), axis, wanted.size, member) for name, (p, axis) in axes.items()}


def _axes(model: nn.Module, shards: Mapping[str, int]) -> dict[str, tuple[Tensor, int]]:
    """Each parameter that is cut, under each of its names, with the axis."""
    known = dict(model.named_parameters(remove_duplicate=False))
    said: dict[int, tuple[int, str]] = {}
    for pattern, axis in shards.items():
        names = [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise InputError(
                f"no parameter is called {pattern!r}, which should be cut along axis {axis}; the model has "
                f"{some(list(known))}"
            )
        for name in names:
            parameter = known[name]
            if not -parameter.dim() <= axis < parameter.dim():
                raise InputError(
                    f"{name} cannot be cut along axis {axis} ({pattern!r}): its shape is {tuple(parameter.shape)}"
                )
            own = axis % parameter.dim()
            other, earlier = said.setdefault(id(parameter), (own, pattern))
            if other != own:
                raise InputError(
                    f"{name} is cut along axis {other} by {earlier!r} and along axis {own} by {pattern!r}; a parameter "
                    "is cut along one, also where several layers share it"
                )
    return {name: (known[name], said[id(known[name])][0]) for name in known if id(known[name]) in said}


def _check_even(axes: Mapping[str, tuple[Tensor, int]], parts: int) -> None:
    lengths = {name: (axis, parameter.shape[axis]) for name, (parameter, axis) in axes.items()}
    uneven = [f"{name} ({length} along axis {axis})" for name, (axis, length) in lengths.items() if length % parts]
    if uneven:
        raise InputError(
            f"{some(uneven)} cannot be cut into {parts} equal parts; choose a number of processes that divides them, "
            "or leave them whole"
        )


def _check_recurrent(model: nn.Module, names: Sequence[str]) -> None:
    found = [name for name in names if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.RNNBase)]
    if found:
        raise InputError(f"{some(found)}: recurrent layers compute with all their matrices at once; leave these whole")
