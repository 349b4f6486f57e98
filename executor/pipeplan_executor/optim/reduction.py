"""Flat storage of a stage's gradients and parameters, and their reduction over replicas.

::

    parameters   weight ─────────┬ bias ┬ padding        gradients have the same layout; each parameter's ``grad`` is a
    flat         ┊ share of 0 ┊ share of 1 ┊             view, so that a reduction is one collective without copies

With ZeRO-1 (Rajbhandari et al., ZeRO, 2020, section 5.1) a replica keeps optimiser state only for its share: each share
of the gradients is summed at its owner and updated there, and each owner broadcasts its parameters. On gloo the sums
are messages (`pipeplan_executor.optim.messages`), since its own reductions move twice as many bytes. At levels 2 and 3
gradients are summed within the passes (`pipeplan_executor.stages.fully_sharded`).
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan_executor.optim.messages import Sum, messages
from pipeplan_executor.stages.fully_sharded import local

ALIGNMENT = 16
"""Every parameter begins at a multiple of this number of elements, for efficient kernels."""


@dataclass(frozen=True)
class Piece:
    """The numbers of one parameter that one replica updates.

    Attributes
    ----------
    name : str
        Name in the unsplit model; copies of one weight on several stages have one name.
    parameter : torch.nn.Parameter
        Parameter of the stage's module, in its shape.
    updated : torch.nn.Parameter
        Parameter of the optimiser: ``parameter`` itself, or a flat view of its numbers in the share.
    start, end : int
        Range of these numbers in the flattened parameter; if that is sharded, in this replica's shard of it.
    """

    name: str
    parameter: nn.Parameter
    updated: nn.Parameter
    start: int
    end: int


Named = tuple[str, nn.Parameter]
"""A name and its parameter."""


class Reduced(Protocol):
    """Parameters of one number format, whose gradients are summed over replicas, and used and zeroed together."""

    named: tuple[Named, ...]

    @property
    def sums(self) -> Tensor:
        """Gradients of which this replica has the whole sum after a reduction, flat."""

    @property
    def counts(self) -> bool:
        """True if a sum over all processes includes `sums` of this process."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of parameters that this replica's optimiser updates."""

    def begin(self) -> None:
        """Prepare a step."""

    def reduce(self) -> None:
        """Sum the gradients over the replicas, if that is not done yet."""

    def exchange(self) -> None:
        """Give every replica all parameters that it keeps, after an update."""

    def clear(self) -> None:
        """Zero the gradients."""


class Flat:
    """Parameters of one number format, with their gradients.

    Parameters
    ----------
    named : sequence of (str, torch.nn.Parameter)
        Parameters of one format, on one device.
    group : ProcessGroup or None
        The stage's replicas; None for a single one.
    zero1 : bool
        Each replica updates a share (ZeRO-1). The parameters are then stored flat too.
    copy_group : ProcessGroup, optional
        All replicas of all stages that have copies of the parameters, if others have. Gradients are summed over them,
        and each replica has the whole sum.
    counted_elsewhere : bool
        Another process has the same parameters and counts them in sums over all processes.

    Attributes
    ----------
    named : tuple of (str, torch.nn.Parameter)
    edges : list of int
        Number in ``gradients`` at which each parameter begins, then the end of the last one.
    copied : bool
        Other stages have copies of the parameters.
    """

    def __init__(
        self,
        named: Sequence[Named],
        group: dist.ProcessGroup | None,
        zero1: bool,
        copy_group: dist.ProcessGroup | None = None,
        counted_elsewhere: bool = False,
    ) -> None:
        self._group = group
        self._copy_group = copy_group
        self._counted_elsewhere = counted_elsewhere
        self._shares = dist.get_world_size(group) if group is not None and zero1 else 1
        self._share = dist.get_rank(group) if self._shares > 1 else 0
        self.named = tuple(named)
        self.copied = copy_group is not None
        self._summed = False
        self._works: list[dist.Work | Sum] = []
        parameters = [parameter for _, parameter in named]
        self.edges = [0]
        for parameter in parameters:
            self.edges.append(self.edges[-1] + _padded(parameter.numel(), ALIGNMENT))
        size = _padded(self.edges[-1], ALIGNMENT * self._shares)
        self.gradients = parameters[0].new_zeros(size)
        self._left = self.edges[-1]
        for parameter, start in zip(parameters, self.edges, strict=False):
            parameter.grad = self.gradients[start : start + parameter.numel()].view_as(parameter)
        self._values: Tensor | None = None
        if self._shares > 1:
            self._values = parameters[0].new_zeros(size)
            for parameter, start in zip(parameters, self.edges, strict=False):
                place = self._values[start : start + parameter.numel()].view_as(parameter)
                place.copy_(parameter.detach())
                parameter.data = place

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of parameters that this replica's optimiser updates."""
        part = len(self.gradients) // self._shares
        low, high = part * self._share, part * (self._share + 1)
        for (name, parameter), edge in zip(self.named, self.edges, strict=False):
            if self._values is None:
                yield Piece(name, parameter, parameter, 0, parameter.numel())
                continue
            a, b = max(edge, low), min(edge + parameter.numel(), high)
            if a < b:
                piece = nn.Parameter(self._values[a:b])
                piece.grad = self.gradients[a:b]
                yield Piece(name, parameter, piece, a - edge, b - edge)

    @property
    def sums(self) -> Tensor:
        """Gradients of which this replica has the whole sum after a reduction, flat."""
        if self._values is None or self._copy_group is not None:
            return self.gradients
        return self.gradients.chunk(self._shares)[self._share]

    @property
    def counts(self) -> bool:
        """True if a sum over all processes includes `sums` of this process: equal values of several count once."""
        alike = self._copy_group or (self._group if self._values is None else None)
        return not self._counted_elsewhere and (alike is None or dist.get_rank(alike) == 0)

    def begin(self) -> None:
        """Prepare a step: gradients that were summed but not used must count once in the next sum."""
        summed_by = self._copy_group or self._group
        if self._summed and summed_by is not None:
            if self._values is not None and self._copy_group is None:
                for number, part in enumerate(self.gradients.chunk(self._shares)):
                    if number != self._share:
                        part.zero_()
            elif dist.get_rank(summed_by) > 0:
                self.clear()
        self._summed = False
        self._works, self._left = [], self.edges[-1]  # padding is not summed: that of copies differs

    def leave(self, start: int) -> None:
        """Begin to sum the gradients from number ``start`` on, except those whose sum has begun."""
        end, self._left = self._left, min(start, self._left)
        group = self._copy_group or self._group
        if start >= end or group is None:
            return
        if self._copy_group is not None or self._values is None:
            self._works.append(dist.all_reduce(self.gradients[start:end], group=group, async_op=True))
            return
        share = len(self.gradients) // self._shares
        edges = [min(max(owner * share, start), end) for owner in range(self._shares + 1)]
        parts = [self.gradients[a:b] for a, b in pairwise(edges)]
        if dist.get_backend(group) == "gloo":
            self._works.append(messages(group).sum(parts))
            return
        for owner, part in enumerate(parts):
            if len(part):
                self._works.append(dist.reduce(part, group=group, group_dst=owner, async_op=True))

    def reduce(self) -> None:
        """Sum the gradients over the replicas: all gradients, or (ZeRO-1) this replica's share."""
        self.leave(0)
        _finish(self._works)
        self._summed = True

    def exchange(self) -> None:
        """Give every replica all parameters, after an update."""
        if self._values is not None:
            parts = self._values.chunk(self._shares)
            _finish([dist.broadcast(p, group=self._group, group_src=i, async_op=True) for i, p in enumerate(parts)])

    def clear(self) -> None:
        """Zero the gradients."""
        self.gradients.zero_()
        self._summed = False


class Sharded:
    """Parameters of one number format in shards (levels 2 and 3 of ZeRO): this replica has the rows of its shard.

    Parameters
    ----------
    named : sequence of (str, torch.nn.Parameter)
        Sharded parameters, whose backwards add the sums of gradients over all replicas to ``grad``.

    Attributes
    ----------
    named : tuple of (str, torch.nn.Parameter)
    sums : Tensor
        Sums of this replica's gradients, flat.
    counts : bool
        True: no other process has the same numbers.
    """

    counts = True

    def __init__(self, named: Sequence[Named]) -> None:
        from torch.distributed.tensor import DTensor  # loaded already, since parameters are DTensors

        self.named = tuple(named)
        values = [local(parameter).view(-1) for _, parameter in named]
        self.sums = values[0].new_zeros(sum(map(len, values)))
        self._pieces = []
        for (name, parameter), own, gradient in zip(named, values, self.sums.split([*map(len, values)]), strict=True):
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
        """Prepare a step: nothing to do, since each backward adds to the sums."""

    def reduce(self) -> None:
        """Nothing to do: the backwards have summed the gradients."""

    def exchange(self) -> None:
        """Nothing to do: the next forward gathers the parameters."""

    def clear(self) -> None:
        """Zero the gradients."""
        self.sums.zero_()


Copied = tuple[Sequence[Named], dist.ProcessGroup]
"""Parameters of which other stages have copies, and the group of all ranks that have one."""


@dataclass(frozen=True)
class ShardedNames:
    """Names of sharded parameters, of which the other tensor-parallel ranks have the other shards.

    Attributes
    ----------
    names : set of str
        All other parameters are the same on all tensor-parallel ranks.
    first : bool
        True on the first tensor-parallel rank.
    """

    names: Set[str] = frozenset()
    first: bool = True


NONE_SHARDED = ShardedNames()
"""No tensor parallelism: all parameters are whole, and counted here."""


def flattened(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    zero1: bool,
    copied: Sequence[Copied] = (),
    sharded_names: ShardedNames = NONE_SHARDED,
) -> tuple[Flat, ...]:
    """Return the trainable parameters of a stage, one `Flat` per number format; copied ones first.

    Sharded parameters are separate from whole ones, in the same order on every tensor-parallel rank.
    """
    apart = {id(parameter) for named, _ in copied for _, parameter in named}
    rest = [(name, parameter) for name, parameter in module.named_parameters() if id(parameter) not in apart]
    return tuple(
        Flat(own, group, zero1, copy_group, counted_elsewhere=not (sharded_names.first or is_sharded))
        for named, copy_group in (*copied, (rest, None))
        for is_sharded, own in _by_kind(named, sharded_names.names)
    )


def sharded(module: nn.Module) -> tuple[Sharded, ...]:
    """Return the trainable parameters of a fully sharded stage, one `Sharded` per number format."""
    return tuple(Sharded(own) for _, own in _by_kind(module.named_parameters(), frozenset()))


def _by_kind(named: Iterable[Named], sharded: Set[str]) -> list[tuple[bool, list[Named]]]:
    """Group parameters by format, and sharded ones apart from whole ones."""
    kinds: dict[tuple[bool, torch.dtype], list[Named]] = {}
    for name, parameter in named:
        if parameter.requires_grad and parameter.numel():
            kinds.setdefault((name in sharded, parameter.dtype), []).append((name, parameter))
    return [(is_sharded, own) for (is_sharded, _), own in kinds.items()]


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _finish(works: Iterable[dist.Work | Sum]) -> None:
    for work in works:
        work.wait()
