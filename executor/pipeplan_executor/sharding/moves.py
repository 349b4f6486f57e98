"""Operands of products moved between parts of the tokens, the whole and parts of the features, as plans price it.

::

    rows are samples x tokens     [1/T of the tokens of every sample, features]    what passes between layers
                                  [all rows, 1/T of the features]                  beside a matrix that is split by rows
                                  [all rows, features]                             beside one that is split by columns
    queries, keys, values         [all tokens, 1/T of the heads]                   beside others that are split by heads

Of each sort the operand that was moved last is kept for others that read it next: the queries, keys and values of one
tensor are gathered once, and a gradient serves those of the operand and of the weight.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from pipeplan_executor.sharding.grouped import along, divides, is_cut
from pipeplan_executor.sharding.parts import WHOLE, is_whole, local, of_spec, placed, spec
from pipeplan_executor.sharding.sequence import Stream
from pipeplan_executor.sharding.tokens import TOKENS, flat


@dataclass(slots=True)
class _Last:
    """The operand that was moved last."""

    key: object = None
    kept: tuple[Tensor, Tensor] | None = None

    def clear(self) -> None:
        self.key, self.kept = None, None


@dataclass(slots=True)
class LastMoved:
    """The operands that were moved last, for others that read them next."""

    _gathered: _Last = field(default_factory=_Last)
    _parts: _Last = field(default_factory=_Last)
    _features: _Last = field(default_factory=_Last)
    _heads: _Last = field(default_factory=_Last)

    def clear(self) -> None:
        """Release them."""
        for last in (self._gathered, self._parts, self._features, self._heads):
            last.clear()

    def gather(self, tensor: DTensor) -> DTensor:
        """Return the whole tensor. A flattened one and its transpose are gathered once."""
        how = spec(tensor).placements[0]
        part, turned = _upright(tensor)
        if isinstance(how, _StridedShard):
            part = part.unflatten(0, (how.split_factor, -1))
        axis = 1 if isinstance(how, _StridedShard) else how.dim
        key = *_key(part), axis
        last = self._gathered
        if last.kept is None or key != last.key:
            last.kept = None  # before the next one is made
            whole = local(placed(part, tensor.device_mesh, (Shard(axis),)), WHOLE)
            last.key, last.kept = key, (part, whole)  # with the part, whose memory nothing else gets meanwhile
        whole = last.kept[1]
        if isinstance(how, _StridedShard):
            whole = whole.flatten(0, 1)
        return placed(whole.t() if turned else whole, tensor.device_mesh, WHOLE)

    def to_tokens(self, tensor: DTensor, axis: int, stream: Stream) -> DTensor:
        """Return a matrix with samples and tokens along an axis as each rank's part of the tokens."""
        how, mesh = spec(tensor).placements[0], tensor.device_mesh
        wanted = flattened(stream, axis)
        if spec(tensor).placements == wanted:
            return tensor
        part = tensor.to_local().t() if axis == 1 else tensor.to_local()
        across = is_cut(how) and how.dim != axis and divides(how, tensor.shape[1 - axis], mesh.size())
        if not (across or type(how) is Partial):
            whole = local(tensor, WHOLE)
            whole = whole.t() if axis == 1 else whole
            made = local(placed(whole.unflatten(0, stream), mesh, WHOLE), TOKENS).flatten(0, 1)
            return placed(made.t() if axis == 1 else made, mesh, wanted)
        held = along(how, 2)[0] if across else how
        key, last = (*_key(part), held), self._parts
        if last.kept is None or key != last.key:
            last.kept = None
            made = local(placed(part.unflatten(0, stream), mesh, (held,)), TOKENS)
            last.key, last.kept = key, (part, made.flatten(0, 1))
        made = last.kept[1]
        return placed(made.t() if axis == 1 else made, mesh, wanted)

    def to_heads(self, tensor: DTensor, like: DTensor) -> DTensor | None:
        """Return a tensor of each rank's tokens as all tokens of its heads; None if these cannot be divided.

        ``like``: one that is split by heads, along an axis of their own, or of stacks of matrices along the first one,
        behind the samples.
        """
        how, mesh, heads = spec(tensor).placements[0], tensor.device_mesh, spec(like).placements[0]
        samples = heads.split_factor if isinstance(heads, _StridedShard) else 1
        stacked = heads.dim == 0
        if (tensor.shape[heads.dim] // samples) % mesh.size():
            return None
        part, axis = tensor.to_local(), how.dim + stacked
        key, last = (*_key(part), axis, heads), self._heads
        if last.kept is None or key != last.key:
            last.kept = None
            made = part.unflatten(0, (samples, -1)) if stacked else part
            made = local(placed(made, mesh, (Shard(axis),)), (Shard(1),))
            last.key, last.kept = key, (part, made.flatten(0, 1) if stacked else made)
        made = last.kept[1]
        meta = spec(placed(made, mesh, (heads,))).tensor_meta
        return of_spec(made, replace(spec(like), tensor_meta=meta))  # as torch made that of the stacks

    def to_features(self, tensor: DTensor, how: Placement) -> DTensor:
        """Return a flattened matrix of each rank's tokens, or its transpose, as all tokens of its part of the features.

        ``how``: which part that is.
        """
        part, turned = _upright(tensor)
        mesh, samples, wanted = tensor.device_mesh, spec(tensor).placements[0].split_factor, along(how, 2)
        key, last = (*_key(part), wanted), self._features
        if last.kept is None or key != last.key:
            last.kept = None
            made = local(placed(part.unflatten(0, (samples, -1)), mesh, TOKENS), wanted)
            last.key, last.kept = key, (part, made.flatten(0, 1))
        made = last.kept[1]
        return placed(made.t() if turned else made, mesh, along(how, 0 if turned else 1))


def flattened(stream: Stream, axis: int) -> tuple[Placement, ...]:
    """Return the placement of a matrix whose axis is samples and tokens, of which each rank has a part."""
    return flat(stream) if axis == 0 else (_StridedShard(axis, split_factor=stream.samples),)


def shard_of(tensor: DTensor, axis: int) -> Tensor:
    """Return the local part of a tensor along an axis; a view where this rank has the whole."""
    if is_whole(tensor):
        length = tensor.shape[axis] // tensor.device_mesh.size()
        return tensor.to_local().narrow(axis, tensor.device_mesh.get_local_rank() * length, length)
    return local(tensor, (Shard(axis),))


def _upright(tensor: DTensor) -> tuple[Tensor, bool]:
    """Return the local part with tokens first if they are flattened, and whether it was transposed for that."""
    how = spec(tensor).placements[0]
    turned = isinstance(how, _StridedShard) and how.dim == 1
    return (tensor.to_local().t() if turned else tensor.to_local()), turned


def _key(part: Tensor) -> tuple[object, ...]:
    return part.data_ptr(), part._version, part.shape, part.stride(), part.dtype
