"""Convolutions on channels of which each tensor-parallel rank has some, and operations by windows of images.

A convolution runs as its weight is split, like a linear map; pooling and padding as the image is::

    weight split by    image      made              gradient of the image
    output channels    whole      output channels   part of a sum
    input channels     by them    part of a sum     input channels
    channels, if each has a kernel of its own: everything is
    nothing            whole      whole             whole

Arguments are moved to these placements first.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

from pipeplan.frontend.operators.rules import POOLING, last_axes
from pipeplan_executor.sharding.parts import WHOLE, as_dtensor, is_whole, local, mapped, placed

_ATEN = torch.ops.aten
_CHANNELS, _FIRST, _PARTIAL = (Shard(1),), (Shard(0),), (Partial(),)
_GROUPS = 8
"""Place of the number of groups among a convolution's arguments; one more in its backward."""


def by_windows(mesh: DeviceMesh, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a convolution, pooling or padding on shards; None if it is none, or shards are others."""
    run = _RUNS.get(func.overloadpacket)
    if run is None or kwargs:
        return None
    return run(func, mapped(partial(as_dtensor, mesh=mesh), args))


class _Cut(NamedTuple):
    """Placements of a convolution's tensors; those of its image's gradient come with them."""

    image: tuple[Placement, ...]
    made: tuple[Placement, ...]
    needed: tuple[Placement, ...]
    """Of the gradient of what is made."""
    returned: tuple[Placement, ...]
    bias: tuple[Placement, ...]


_OUTPUTS = _Cut(WHOLE, _CHANNELS, _CHANNELS, _PARTIAL, _FIRST)
_INPUTS = _Cut(_CHANNELS, _PARTIAL, WHOLE, _CHANNELS, WHOLE)
_NOTHING = _Cut(WHOLE, WHOLE, WHOLE, WHOLE, WHOLE)
_EACH = _Cut(_CHANNELS, _CHANNELS, _CHANNELS, _CHANNELS, _FIRST)


def _cut(weight: DTensor, transposed: bool, groups: int) -> _Cut | None:
    """Return how a convolution is split by its weight; None if that is split otherwise."""
    if is_whole(weight):
        return _NOTHING
    if type(how := weight.placements[0]) is not Shard or how.dim > 1:
        return None
    if weight.shape[how.dim] % weight.device_mesh.size():
        return None
    if groups > 1:
        return _EACH if how.dim == 0 and len(weight) == groups and weight.shape[1] == 1 else None
    return _INPUTS if bool(how.dim) != transposed else _OUTPUTS


def _convolve(func: Any, args: Sequence[Any]) -> DTensor | None:
    image, weight, bias, *rest = args
    how = _cut(weight, args[6], args[_GROUPS])
    if how is None:
        return None
    mesh = weight.device_mesh
    own = None if bias is None else local(bias, how.bias)
    if own is not None and how.made == _PARTIAL and mesh.get_local_rank():
        own = None  # one rank adds it
    if how is _EACH:
        rest[-1] //= mesh.size()
    made = func(local(image, how.image), local(weight, weight.placements), own, *rest)
    return placed(made, mesh, how.made)


def _convolve_backward(func: Any, args: Sequence[Any]) -> tuple[DTensor | None, ...] | None:
    gradient, image, weight, sizes, *rest, mask = args
    how = _cut(weight, args[7], args[_GROUPS + 1])
    if how is None:
        return None
    mesh = weight.device_mesh
    if sizes is not None and how.bias == _FIRST:
        sizes = [sizes[0] // mesh.size()]
    if how is _EACH:
        rest[-1] //= mesh.size()
    given = local(gradient, how.needed), local(image, how.image), local(weight, weight.placements)
    made = func(*given, sizes, *rest, mask)
    placements = how.returned, weight.placements, how.bias
    return tuple(None if each is None else placed(each, mesh, own) for each, own in zip(made, placements, strict=True))


def _by_image(func: Any, args: Sequence[Any]) -> Any:
    """Run an operation on the channels that each rank has of the image; a backward has the gradient before it."""
    image = args[1] if isinstance(args[1], Tensor) else args[0]
    how = image.placements
    if not is_whole(image):
        cut = how[0]
        axes = image.dim() - last_axes(func, args)
        if type(cut) is not Shard or cut.dim >= axes or image.shape[cut.dim] % image.device_mesh.size():
            return None
    made = func(*(local(each, how) if isinstance(each, Tensor) else each for each in args))
    mesh = image.device_mesh
    return placed(made, mesh, how) if isinstance(made, Tensor) else tuple(placed(each, mesh, how) for each in made)


_RUNS: Mapping[Any, Callable[[Any, Sequence[Any]], Any]] = {
    _ATEN.convolution: _convolve,
    _ATEN.convolution_backward: _convolve_backward,
    _ATEN.constant_pad_nd: _by_image,
    **dict.fromkeys(POOLING, _by_image),
    **dict.fromkeys((getattr(_ATEN, f"{each.__name__}_backward") for each in POOLING), _by_image),
}
