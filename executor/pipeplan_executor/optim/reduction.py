"""Reductions of a stage's gradients over its replicas: parameters by number format, flat or in shards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan_executor.optim.flat import Flat, Named, Piece
from pipeplan_executor.sharding.mesh.gradients import MeshGradients
from pipeplan_executor.stages.fully_sharded import local


class Reduced(Protocol):
    """Parameters of one number format, whose gradients are summed over replicas, and used and zeroed together."""

    named: tuple[Named, ...]

    @property
    def sums(self) -> Sequence[Tensor]:
        """Gradients of which this replica has the whole sum after a reduction, in flat pieces."""

    @property
    def counts(self) -> bool:
        """True if a sum over all processes includes `sums` of this process."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of parameters that this replica's optimiser updates."""

    def begin(self) -> None:
        """Prepare a step."""

    def leave(self, start: int) -> None:
        """Begin to sum the gradients from number ``start`` on, if that can be waited for later."""

    def reduce(self) -> None:
        """Sum the gradients over the replicas, if that is not done yet."""

    def finish(self) -> None:
        """Sum what each tensor-parallel rank has for its own tokens, if that is not done yet."""

    def clear(self) -> None:
        """Zero the gradients."""


class Sharded:
    """Parameters of one number format in shards (levels 2 and 3 of ZeRO): this replica has the rows of its shard.

    Parameters
    ----------
    named : sequence of (str, torch.nn.Parameter)
        Sharded parameters, whose backwards add the sums of gradients over all replicas to ``grad``.
    counts : bool
        False if another process has the same numbers and counts them in sums over all processes.
    partial : MeshGradients, optional
        Gradients among them that are summed over the tensor-parallel ranks too.

    Attributes
    ----------
    named : tuple of (str, torch.nn.Parameter)
    sums : list of Tensor
        Sums of this replica's gradients, flat.
    counts : bool
    """

    def __init__(
        self,
        named: Sequence[Named],
        counts: bool = True,
        partial: MeshGradients | None = None,
    ) -> None:
        from torch.distributed.tensor import DTensor  # loaded already, since parameters are DTensors

        self.named, self.counts = tuple(named), counts
        self._partial = partial
        self._waits, self._summed = False, False
        values = [local(parameter).view(-1) for _, parameter in named]
        sums = values[0].new_zeros(sum(map(len, values)))
        self.sums = [sums]
        self._pieces = []
        gradients = sums.split([*map(len, values)])
        self._gradients = [(parameter, own) for (_, parameter), own in zip(named, gradients, strict=True)]
        for (name, parameter), own, gradient in zip(named, values, gradients, strict=True):
            parameter.grad = DTensor.from_local(
                gradient.view(local(parameter).shape),
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            if len(own):
                piece = nn.Parameter(own)
                piece.grad = gradient
                self._pieces.append(Piece(name, parameter, piece, 0, len(own)))

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of parameters that this replica's optimiser updates."""
        yield from self._pieces

    def begin(self) -> None:
        """Prepare a step: sums over tensor-parallel ranks that were not used must count once in the next ones."""
        if self._summed and self._partial is not None:
            self._partial.keep_once(self._gradients)
        self._waits, self._summed = True, False

    def leave(self, start: int) -> None:
        """Begin nothing: the backwards have summed all."""

    def reduce(self) -> None:
        """Sum partial gradients over the tensor-parallel ranks; the backwards have summed all over the replicas."""
        if self._waits and self._partial is not None:
            self._partial.sum(self._gradients)
            self._summed = True
        self._waits = False

    def finish(self) -> None:
        """Sum what each tensor-parallel rank has for its own tokens, if no R has done so."""
        self.reduce()

    def clear(self) -> None:
        """Zero the gradients."""
        for sums in self.sums:
            sums.zero_()
        self._summed = False


Copied = tuple[Sequence[Named], dist.ProcessGroup]
"""Parameters of which other stages have copies, and the group of all ranks that have one."""


@dataclass(frozen=True)
class ShardedNames:
    """Names of sharded parameters, of which other tensor-parallel ranks have other shards.

    Attributes
    ----------
    axes : mapping of str to set of int
        The axes of the tensor-parallel ranks' mesh along which a parameter is sharded. Along other axes, and all others
        are along each, it is the same on all ranks.
    places : tuple of int
        Place of this rank along each axis.
    """

    axes: Mapping[str, Set[int]] = field(default_factory=dict)
    places: tuple[int, ...] = (0,)

    def of(self, name: str) -> frozenset[int]:
        """Return the axes along which a parameter is sharded."""
        return frozenset(self.axes.get(name, ()))

    def counts(self, axes: Set[int]) -> bool:
        """Return whether this rank counts a parameter that is sharded along these axes: the first of equal ranks."""
        return not any(place for axis, place in enumerate(self.places) if axis not in axes)

    def is_split(self, axes: Set[int]) -> bool:
        """Return whether all ranks have other parts of it."""
        return len(axes) == len(self.places)


NONE_SHARDED = ShardedNames()
"""No tensor parallelism: all parameters are whole, and counted here."""


def flattened(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    zero1: bool,
    copied: Sequence[Copied] = (),
    sharded_names: ShardedNames = NONE_SHARDED,
    layers: Mapping[int, int] | None = None,
    cuts: Sequence[int] = (),
    partial: MeshGradients | None = None,
) -> tuple[Flat, ...]:
    """Return the trainable parameters of a stage, one `Flat` per number format; copied ones first.

    Sharded parameters are separate from whole ones, in the same order on every tensor-parallel rank. ``layers`` are
    those of `first_layers`; under ZeRO-1 replicas share out the layers from each of ``cuts`` to the next one.
    ``partial`` has the gradients of whole parameters that are summed over the tensor-parallel ranks.
    """
    layers = layers or {}
    apart = {id(parameter) for named, _ in copied for _, parameter in named}
    rest = [(name, parameter) for name, parameter in module.named_parameters() if id(parameter) not in apart]
    return tuple(
        Flat(
            own,
            group,
            zero1,
            copy_group,
            not sharded_names.counts(axes),
            [layers.get(id(parameter), 0) for _, parameter in own],
            () if copy_group is not None else cuts,
            None if sharded_names.is_split(axes) else partial,
        )
        for named, copy_group in (*copied, (rest, None))
        for axes, own in _by_kind(named, sharded_names)
    )


def begins(sizes: Sequence[int], layers: int) -> list[int]:
    """Return the first layer of each bucket of a stage with so many layers; its first bucket has the last layers."""
    return [layers - behind for behind in accumulate(sizes)]


def first_layers(layers: Sequence[nn.Module]) -> dict[int, int]:
    """Return the number of the first layer that has a parameter, by the parameter's ``id``."""
    return {id(p): number for number in reversed(range(len(layers))) for p in layers[number].parameters()}


def sharded(
    module: nn.Module,
    sharded_names: ShardedNames = NONE_SHARDED,
    partial: MeshGradients | None = None,
) -> tuple[Sharded, ...]:
    """Return the trainable parameters of a fully sharded stage, one `Sharded` per number format.

    Those that tensor-parallel ranks share out are separate from others, as in `flattened`.
    """
    return tuple(
        Sharded(own, sharded_names.counts(axes), None if sharded_names.is_split(axes) else partial)
        for axes, own in _by_kind(module.named_parameters(), sharded_names)
    )


def _by_kind(named: Iterable[Named], sharded: ShardedNames) -> list[tuple[frozenset[int], list[Named]]]:
    """Group parameters by format, and by the axes along which they are sharded."""
    kinds: dict[tuple[frozenset[int], torch.dtype], list[Named]] = {}
    for name, parameter in named:
        if parameter.requires_grad and parameter.numel():
            kinds.setdefault((sharded.of(name), parameter.dtype), []).append((name, parameter))
    return [(axes, own) for (axes, _), own in kinds.items()]
