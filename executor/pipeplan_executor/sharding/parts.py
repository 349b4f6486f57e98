"""Conversion between DTensors and local shards below autograd; and traversal of the tensors among arguments.

All uses of DTensor's private names are here; a new release may move them. `mapped` and `tensors` traverse arguments
themselves, since torch's pytree functions take longer than the operation. For the same reason DTensors are made, summed
and gathered here by the operations that DTensor itself would call.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_global_tensor_info

from pipeplan_executor.sharding.grouped import Grouped, by_rank, divides, in_order, is_cut, part_of

WHOLE = (Replicate(),)
Specs: TypeAlias = Any
"""Layout of a DTensor, or a sequence of layouts; None for what is no tensor."""
MOST = 4096
"""Layouts that are kept for a mesh."""
_SPECS = "pipeplan_specs"
_SENT = torch.ops._c10d_functional


def placed(part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Return the DTensor whose local shard is ``part``.

    `DTensor.from_local` is recorded by autograd; results of operations below autograd must not be.
    """
    return of_spec(part, spec_of(part, mesh, placements))


def as_dtensor(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a DTensor as it is, and a plain tensor as one that is whole on every rank."""
    return tensor if isinstance(tensor, DTensor) else placed(tensor, mesh, WHOLE)


def spec_of(part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensorSpec:
    """Return the layout of a DTensor with this local shard; one object for equal layouts."""
    known: dict[object, DTensorSpec] | None = getattr(mesh, _SPECS, None)
    if known is None or len(known) >= MOST:
        known = {}
        setattr(mesh, _SPECS, known)
    key = part.shape, part.stride(), part.dtype, placements
    found = known.get(key)
    if found is None:
        shape, stride = part.shape, part.stride()
        if placements != WHOLE:
            how = placements[0]
            known_to_torch = (Shard(how.dim),) if type(how) is Grouped else placements
            whole, strides = compute_global_tensor_info(part, mesh, known_to_torch)
            shape, stride = torch.Size(whole), tuple(strides)
        found = known[key] = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(shape, stride, part.dtype))
    return found


def of_spec(part: Tensor, how: DTensorSpec) -> DTensor:
    """Return the DTensor of this layout whose local shard is ``part``."""
    made: DTensor = torch.Tensor._dtensor__new__(DTensor, part, how, requires_grad=False)
    return made


def spec(tensor: DTensor) -> DTensorSpec:
    """Return the layout of a tensor."""
    return tensor._spec


def shard(tensor: Tensor) -> Tensor:
    """Return the local shard of a DTensor as it is, and other tensors as they are."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def local_rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Specs] | None:
    """Return the arguments and the layouts of results with which DTensor runs an operation on shards.

    A tensor among the arguments is None, or the placements that it must get first. All is None if DTensor would do
    something of its own, or not run it.
    """
    dispatcher: Any = DTensor._op_dispatcher
    if func in dispatcher._custom_op_handlers or func in dispatcher._random_ops:
        return None
    if any(isinstance(each, Tensor) for each in kwargs.values()):
        return None
    try:
        info = dispatcher.unwrap_to_op_info(func, args, kwargs)
        if info.args_tree_spec is not None:
            return None
        found = dispatcher.sharding_propagator.propagate_op_sharding_non_cached(info.schema)
    except Exception:  # whatever it is, it is raised again where DTensor runs the operation
        return None
    given: Sequence[Any] = info.schema.args_schema
    wanted = given
    if found.needs_redistribute:
        wanted = found.redistribute_schema.args_schema
        if found.redistribute_schema.op != func or len(wanted) != len(given):
            return None
    arguments: list[Any] = []
    for own, new in zip(given, wanted, strict=True):
        if isinstance(own, DTensorSpec):
            if own != new and any(each.is_partial() for each in new.placements):
                return None
            arguments.append(None if own == new else new.placements)
        else:
            arguments.append(new if found.use_val_from_redistribute_schema else own)
    return tuple(arguments), found.output_spec


def local(tensor: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return the local shard of a tensor under these placements; no copy if it has them already."""
    own, wanted = tensor._spec.placements, tuple(placements)
    if own == wanted:
        return tensor._local_tensor
    if wanted == WHOLE and (found := _whole(tensor, own[0])) is not None:
        return found
    if type(own[0]) is Grouped or type(wanted[0]) is Grouped:
        return _regrouped(tensor, own[0], wanted[0])
    if type(own[0]) is Shard and type(wanted[0]) is Shard and own[0].dim != wanted[0].dim:
        size = tensor._spec.mesh.size()
        if not (tensor.shape[own[0].dim] % size or tensor.shape[wanted[0].dim] % size):
            return exchanged(tensor._local_tensor, tensor._spec.mesh, wanted[0].dim, own[0].dim)
    with torch.no_grad():
        return tensor.redistribute(placements=wanted).to_local()


def _whole(tensor: DTensor, own: Placement) -> Tensor | None:
    """Return the whole of a partial sum or of equal shards; None for others."""
    mesh, part = tensor._spec.mesh, tensor._local_tensor
    if mesh.size() == 1:
        return part
    if type(own) is Partial and own.reduce_op == "sum":
        return wait(_SENT.all_reduce(part, "sum", mesh.get_group().group_name))
    if is_cut(own) and divides(own, tensor.shape[own.dim], mesh.size()):
        sent = _SENT.all_gather_into_tensor(part.contiguous(), mesh.size(), mesh.get_group().group_name)
        together = wait(sent)
        if type(own) is Grouped:
            return in_order(together.chunk(mesh.size()), own)
        return together if own.dim == 0 else torch.cat(together.chunk(mesh.size()), own.dim)
    return None


def _regrouped(tensor: DTensor, own: Placement, wanted: Placement) -> Tensor:
    """Return the local shard where groups are, or become, split: of whole groups laid out by rank if that suffices."""
    mesh, part = tensor._spec.mesh, tensor._local_tensor
    count, rank = mesh.size(), mesh.get_local_rank()
    if type(wanted) is Grouped:
        if type(own) is Replicate:
            return part_of(part, wanted, count, rank)
        if type(own) is Partial or (type(own) is Shard and own.dim != wanted.dim):
            return local(placed(by_rank(part, wanted, count), mesh, (own,)), (Shard(wanted.dim),))
    elif type(own) is Grouped and type(wanted) is Shard and own.dim != wanted.dim:
        laid_out = local(placed(part, mesh, (Shard(own.dim),)), (wanted,))
        return in_order(laid_out.chunk(count, own.dim), own)
    return local(placed(local(tensor, WHOLE), mesh, WHOLE), (wanted,))


def exchanged(part: Tensor, mesh: DeviceMesh, split: int, joined: int) -> Tensor:
    """Return a part along axis ``split`` of a tensor of which each rank has a part along ``joined``: an all-to-all."""
    parts = mesh.size()
    if parts == 1:
        return part
    received = all_to_all(torch.stack(part.chunk(parts, split)), mesh)
    return torch.cat(received.unbind(0), joined)


def all_to_all(parts: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return what each rank has for this one; ``parts[r]`` is for rank r."""
    ones = [1] * mesh.size()
    return wait(_SENT.all_to_all_single(parts, ones, ones, mesh.get_group().group_name))


def all_gather(part: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the parts of all ranks, one behind another along a new first axis."""
    made = wait(_SENT.all_gather_into_tensor(part.contiguous(), mesh.size(), mesh.get_group().group_name))
    return made.view(mesh.size(), *part.shape)


def reduce_scatter(parts: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the sum over all ranks of the part for this one; ``parts[r]`` is for rank r."""
    own = parts.contiguous()
    made = wait(_SENT.reduce_scatter_tensor(own, "sum", mesh.size(), mesh.get_group().group_name))
    return made.view(parts.shape[1:])


class Ring(NamedTuple):
    """Ranks of a group, each of which sends to the next one."""

    group: dist.ProcessGroup
    size: int
    rank: int


def ring_of(mesh: DeviceMesh) -> Ring:
    """Return the ranks of a mesh of one axis."""
    return Ring(mesh.get_group(), mesh.size(), mesh.get_local_rank())


def shift(parts: Sequence[Tensor], ring: Ring) -> Callable[[], list[Tensor]]:
    """Begin to send tensors to the next rank; what is returned waits for those of the rank before, of equal shapes."""
    group, size, rank = ring
    own = list(parts)
    found = [torch.empty_like(part) for part in own]
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = [dist.P2POp(dist.isend, part, group=group, tag=n, group_peer=after) for n, part in enumerate(own)]
    receives = [dist.P2POp(dist.irecv, part, group=group, tag=n, group_peer=before) for n, part in enumerate(found)]
    begun = dist.batch_isend_irecv([*sends, *receives])

    def arrived() -> list[Tensor]:
        for each in begun:
            each.wait()
        own.clear()  # needed until it is sent
        return found

    return arrived


def reduced_over(tensor: DTensor, part: Tensor, how: str = "sum") -> Tensor:
    """Return the sum or the maximum, over the ranks of a tensor, of a plain tensor that each of them has."""
    mesh = tensor.device_mesh
    return part if mesh.size() == 1 else wait(_SENT.all_reduce(part.contiguous(), how, mesh.get_group().group_name))


def wait(tensor: Tensor) -> Tensor:
    """Wait for a collective, and return its result."""
    made: Tensor = _SENT.wait_tensor(tensor)
    return made


def is_whole(tensor: DTensor) -> bool:
    """Return whether every tensor-parallel rank has the whole tensor."""
    return type(tensor._spec.placements[0]) is Replicate


def is_partial(tensor: DTensor) -> bool:
    """Return whether each rank has a part of a sum, or of another reduction."""
    return bool(spec(tensor).placements[0].is_partial())


def is_sum(value: Any) -> bool:
    """Return whether a value is a tensor of which each rank has a part of a sum."""
    return isinstance(value, DTensor) and all(type(p) is Partial and p.reduce_op == "sum" for p in value.placements)


def are_addends(one: Any, other: Any) -> bool:
    """Return whether two tensors of a shape are partial sums or whole."""
    both = one, other
    return all(isinstance(each, DTensor) and (is_sum(each) or is_whole(each)) for each in both) and (
        one.shape == other.shape
    )


def whole_of(tensor: Tensor) -> Tensor:
    """Return a tensor as a whole, plain ones as they are."""
    return local(tensor, WHOLE) if isinstance(tensor, DTensor) else tensor


def blank_of(tensor: DTensor) -> Tensor:
    """Return an uninitialised whole tensor of the same layout."""
    if is_whole(tensor):
        return local(tensor, WHOLE)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Return the value with every tensor in it replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([change(each) if isinstance(each, Tensor) else _within(change, each) for each in value])
    return {key: mapped(change, each) for key, each in value.items()} if kind is dict else value


def _within(change: Callable[[Tensor], Any], value: Any) -> Any:
    return mapped(change, value) if type(value) in (tuple, list) else value


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[DTensor]:
    """Return the DTensors among the arguments."""
    found = []
    for each in (*args, *kwargs.values()):
        if isinstance(each, DTensor):
            found.append(each)
        elif type(each) in (tuple, list):
            found += [one for one in each if isinstance(one, DTensor)]
    return found
