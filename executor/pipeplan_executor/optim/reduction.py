"""The gradients and parameters of a stage side by side in one piece of memory, shared among its replicas.

::

    parameters   weight ─────────┬ bias ┬ padding        gradients lie the same way; ``grad`` of every parameter is a
    flat         ┊ share of 0 ┊ share of 1 ┊             view, so that a reduction is one collective without copies

With ZeRO-1 (Rajbhandari et al., ZeRO, 2020, section 5.1) a replica keeps optimiser state for its share only: each share
of the gradients is summed at its owner, updated there, and the parameters go from each owner to all. (Gloo's own
reduce-scatter and all-gather move as much, but copy everything first.)
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

ALIGNMENT = 16
"""Every parameter begins at a multiple of so many numbers, as kernels like it."""


@dataclass(frozen=True)
class Piece:
    """What one replica updates of one parameter.

    Attributes
    ----------
    name : str
        In the unsplit model; copies of one weight on several stages have one name.
    parameter : torch.nn.Parameter
        Of the stage's module, in its shape.
    updated : torch.nn.Parameter
        What the optimiser holds: ``parameter`` itself, or a flat view of those of its numbers that lie in the share.
    start, end : int
        Which numbers these are, of the parameter laid out flat.
    """

    name: str
    parameter: nn.Parameter
    updated: nn.Parameter
    start: int
    end: int


Named = tuple[str, nn.Parameter]
"""A parameter behind its name."""


class Flat:
    """Parameters of one number format, with their gradients.

    Parameters
    ----------
    named : sequence of (str, torch.nn.Parameter)
        Of one format, on one device.
    group : ProcessGroup or None
        The stage's replicas; None if it has one only.
    sharded : bool
        Each replica updates a share (ZeRO-1). The parameters then move into one piece of memory too.
    everybody : ProcessGroup, optional
        Where other stages have copies of the parameters: all replicas of all these stages. Gradients are summed over
        them, and each replica has the whole sum.
    elsewhere : bool
        Another process has all this alike, and counts it.
    """

    def __init__(
        self,
        named: Sequence[Named],
        group: dist.ProcessGroup | None,
        sharded: bool,
        everybody: dist.ProcessGroup | None = None,
        elsewhere: bool = False,
    ) -> None:
        self._group = group
        self._everybody = everybody
        self._elsewhere = elsewhere
        self._shares = dist.get_world_size(group) if group is not None and sharded else 1
        self._share = dist.get_rank(group) if self._shares > 1 else 0
        self.named = tuple(named)
        self._summed = False
        parameters = [parameter for _, parameter in named]
        self._edges = [0]
        for parameter in parameters:
            self._edges.append(self._edges[-1] + _padded(parameter.numel(), ALIGNMENT))
        size = _padded(self._edges[-1], ALIGNMENT * self._shares)
        self.gradients = parameters[0].new_zeros(size)
        for parameter, start in zip(parameters, self._edges, strict=False):
            parameter.grad = self.gradients[start : start + parameter.numel()].view_as(parameter)
        self._values: Tensor | None = None
        if self._shares > 1:
            self._values = parameters[0].new_zeros(size)
            for parameter, start in zip(parameters, self._edges, strict=False):
                place = self._values[start : start + parameter.numel()].view_as(parameter)
                place.copy_(parameter.detach())
                parameter.data = place

    def pieces(self) -> Iterator[Piece]:
        """What this replica's optimiser updates."""
        part = len(self.gradients) // self._shares
        low, high = part * self._share, part * (self._share + 1)
        for (name, parameter), edge in zip(self.named, self._edges, strict=False):
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
        """Behind a reduction: those gradients of which this replica has the whole sum, side by side."""
        if self._values is None or self._everybody is not None:
            return self.gradients
        return self.gradients.chunk(self._shares)[self._share]

    @property
    def counts(self) -> bool:
        """Whether a sum over all processes takes `sums` from here: what several have alike counts once."""
        alike = self._everybody or (self._group if self._values is None else None)
        return not self._elsewhere and (alike is None or dist.get_rank(alike) == 0)

    def begin(self) -> None:
        """Ahead of a step: gradients that are summed already and were not used must count once in the next sum."""
        summed_by = self._everybody or self._group
        if self._summed and summed_by is not None:
            if self._values is not None and self._everybody is None:
                for number, part in enumerate(self.gradients.chunk(self._shares)):
                    if number != self._share:
                        part.zero_()
            elif dist.get_rank(summed_by) > 0:
                self.clear()
        self._summed = False

    def reduce(self) -> None:
        """Sum the gradients over the replicas: all of them, or (ZeRO-1) this replica's share."""
        if self._everybody is not None:
            dist.all_reduce(self.gradients, group=self._everybody)
        elif self._values is not None:
            parts = self.gradients.chunk(self._shares)
            _finish([dist.reduce(p, group=self._group, group_dst=i, async_op=True) for i, p in enumerate(parts)])
        elif self._group is not None:
            dist.all_reduce(self.gradients, group=self._group)
        self._summed = True

    def exchange(self) -> None:
        """After an update: give every replica all parameters."""
        if self._values is not None:
            parts = self._values.chunk(self._shares)
            _finish([dist.broadcast(p, group=self._group, group_src=i, async_op=True) for i, p in enumerate(parts)])

    def clear(self) -> None:
        """Gradients become zero."""
        self.gradients.zero_()
        self._summed = False


Copied = tuple[Sequence[Named], dist.ProcessGroup]
"""Parameters of which other stages have copies, and all ranks that have one."""


@dataclass(frozen=True)
class Parts:
    """Of which parameters this process has a part, and other members of its team the others.

    Attributes
    ----------
    names : set of str
        All other parameters all members have alike.
    first : bool
        Whether this is the first member.
    """

    names: Set[str] = frozenset()
    first: bool = True


WHOLE = Parts()
"""All parameters are whole here, and counted."""


def flattened(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    sharded: bool,
    copied: Sequence[Copied] = (),
    cut: Parts = WHOLE,
) -> tuple[Flat, ...]:
    """The trainable parameters of a stage, one `Flat` for each number format; first those that are copied.

    Those that are cut are apart from those that are whole, on every member of a team in the same order.
    """
    apart = {id(parameter) for named, _ in copied for _, parameter in named}
    rest = [(name, parameter) for name, parameter in module.named_parameters() if id(parameter) not in apart]
    return tuple(
        Flat(own, group, sharded, everybody, elsewhere=not (cut.first or is_cut))
        for named, everybody in (*copied, (rest, None))
        for is_cut, own in _by_kind(named, cut.names)
    )


def _by_kind(named: Iterable[Named], cut: Set[str]) -> list[tuple[bool, list[Named]]]:
    """Parameters of one format, all cut or all whole."""
    kinds: dict[tuple[bool, torch.dtype], list[Named]] = {}
    for name, parameter in named:
        if parameter.requires_grad and parameter.numel():
            kinds.setdefault((name in cut, parameter.dtype), []).append((name, parameter))
    return [(is_cut, own) for (is_cut, _), own in kinds.items()]


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _finish(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()
