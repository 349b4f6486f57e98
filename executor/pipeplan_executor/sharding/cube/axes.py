"""Axes of a cube of processes: parts of tensors along them, and collectives along one of them.

A dimension may be split along several axes, the outer one first::

    rows of x over (w, i), 2 x 2          w = 0, i = 0 | w = 0, i = 1 | w = 1, i = 0 | w = 1, i = 1

Along an axis, only what is innermost can be gathered or scattered without another collective.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

_SENT = torch.ops._c10d_functional


class Axes(NamedTuple):
    """Axes of a cube, each a mesh of one dimension through this process.

    Attributes
    ----------
    weight : DeviceMesh
        Along it weights are gathered.
    input : DeviceMesh
        Along it a linear map's input is gathered.
    output : DeviceMesh
        Along it parts of its output are summed and scattered.
    """

    weight: DeviceMesh
    input: DeviceMesh
    output: DeviceMesh

    @property
    def swapped(self) -> "Axes":
        """The axes of what reads the output of a linear map."""
        return Axes(self.weight, self.output, self.input)


def axes_of(mesh: DeviceMesh, order: tuple[int, int, int] = (0, 1, 2)) -> Axes:
    """Return the axes of a mesh of three dimensions; ``order``: which of them are weight, input and output.

    The last dimension of a mesh joins neighbours, which mostly have the fastest links.
    """
    assert mesh.mesh_dim_names is not None, "the dimensions of the mesh have names"
    return Axes(*(mesh[mesh.mesh_dim_names[place]] for place in order))


def part_of(whole: Tensor, *split: Sequence[DeviceMesh]) -> Tensor:
    """Return this process's part of a tensor; ``split`` has the axes of each of its dimensions, the outer ones first.

    Raises
    ------
    ValueError
        If an axis does not divide what is left of a dimension.
    """
    part = whole
    for dimension, axes in enumerate(split):
        for axis in axes:
            if part.shape[dimension] % axis.size():
                raise ValueError(
                    f"a dimension of {whole.shape[dimension]} cannot have equal parts along axes of "
                    f"{' x '.join(str(each.size()) for each in axes)} processes"
                )
            part = part.chunk(axis.size(), dimension)[axis.get_local_rank()]
    return part.clone(memory_format=torch.contiguous_format)


def gathered(part: Tensor, axis: DeviceMesh) -> Tensor:
    """Begin to gather parts of the first dimension; `arrived` returns the whole."""
    if axis.size() == 1:
        return part
    found: Tensor = _SENT.all_gather_into_tensor(part.contiguous(), axis.size(), axis.get_group().group_name)
    return found


def scattered(summand: Tensor, axis: DeviceMesh) -> Tensor:
    """Begin to sum tensors and scatter the first dimension of the sum; `arrived` returns this process's part."""
    if axis.size() == 1:
        return summand
    group = axis.get_group().group_name
    found: Tensor = _SENT.reduce_scatter_tensor(summand.contiguous(), "sum", axis.size(), group)
    return found


def summed(summand: Tensor, axis: DeviceMesh) -> Tensor:
    """Begin to sum tensors; `arrived` returns the sum."""
    if axis.size() == 1:
        return summand
    found: Tensor = _SENT.all_reduce(summand.contiguous(), "sum", axis.get_group().group_name)
    return found


def arrived(begun: Tensor) -> Tensor:
    """Wait for a collective, and return its result; other tensors as they are."""
    found: Tensor = _SENT.wait_tensor(begun)
    return found
