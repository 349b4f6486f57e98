"""Flat storage of a stage's gradients and parameters, and their reduction over replicas.

::

    layers       0, 1                          2                 gradients have the same layout; each parameter's
    parameters   weight ┬ bias ┬ weight ┬ pad ┬ weight ┬ bias    ``grad`` is a view, so that a reduction is one
    segments     ┊ share of 0 ─┊ of 1 ────────┊ of 0 ──┊ of 1    collective without copies

With ZeRO-1 (Rajbhandari et al., ZeRO, 2020, section 5.1) a replica keeps optimiser state only for its share, an equal
part of every *segment*. The layers whose gradients are summed together have whole segments, and so have those whose
parameters are gathered together. Thus all replicas send and receive as many bytes in each sum and each gather. Each
share of the gradients is summed at its owner and updated there. Behind the update the owners begin to send it to all,
in the order in which the next forward reads parameters; nobody waits for it before that. On gloo all of these are
messages (`pipeplan_executor.stages.messages`), since its own reductions move twice as many bytes. At levels 2 and 3
gradients are summed within the passes (`pipeplan_executor.stages.fully_sharded`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from pipeplan_executor.optim.lossy.sums import BoundedLoss
from pipeplan_executor.sharding.mesh.gradients import MeshGradients
from pipeplan_executor.stages.messages import messages
from pipeplan_executor.stages.stage_module import Pending

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


class Segment(NamedTuple):
    """Numbers that replicas share out equally.

    Attributes
    ----------
    layer : int
        First layer of the stage that reads one of them.
    start, end : int
        Their range in a flat buffer.
    """

    layer: int
    start: int
    end: int


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
    layers : sequence of int, optional
        First layer that reads each parameter, ascending; by default 0.
    cuts : sequence of int
        Layers at which a segment begins, ascending; none for one segment.
    partial : MeshGradients, optional
        Gradients among them that are summed over the tensor-parallel ranks first.

    Attributes
    ----------
    named : tuple of (str, torch.nn.Parameter)
    edges : list of int
        Number in ``gradients`` at which each parameter begins, then the end of the last one.
    copied : bool
        Other stages have copies of the parameters.
    segments : tuple of Segment
        What replicas share out, in the order of the layers; empty if each updates everything.
    """

    def __init__(
        self,
        named: Sequence[Named],
        group: dist.ProcessGroup | None,
        zero1: bool,
        copy_group: dist.ProcessGroup | None = None,
        counted_elsewhere: bool = False,
        layers: Sequence[int] | None = None,
        cuts: Sequence[int] = (),
        partial: MeshGradients | None = None,
    ) -> None:
        self._group = group
        self._copy_group = copy_group
        self._counted_elsewhere = counted_elsewhere
        self._partial = partial
        self._shares = dist.get_world_size(group) if group is not None and zero1 else 1
        self._share = dist.get_rank(group) if self._shares > 1 else 0
        self.named = tuple(named)
        self.copied = copy_group is not None
        self._summed = False
        self._works: list[Pending] = []
        self._kept: dict[int, Tensor | None] = {}  # what sums with loss have left out, by their first number
        parameters = [parameter for _, parameter in named]
        self.edges: list[int] = []
        every: list[Segment] = []
        size, last = 0, -1
        for parameter, layer in zip(parameters, layers or [0] * len(parameters), strict=True):
            if bisect_right(cuts, layer) != last:
                size, last = _padded(size, ALIGNMENT * self._shares), bisect_right(cuts, layer)
                every.append(Segment(layer, size, size))
            self.edges.append(size)
            size += _padded(parameter.numel(), ALIGNMENT)
            every[-1] = every[-1]._replace(end=_padded(size, ALIGNMENT * self._shares))
        self.edges.append(size)
        self.segments = tuple(every) if self._shares > 1 else ()
        size = every[-1].end
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
        for (name, parameter), edge in zip(self.named, self.edges, strict=False):
            if self._values is None:
                yield Piece(name, parameter, parameter, 0, parameter.numel())
                continue
            own = next(segment for segment in self.segments if edge < segment.end)
            part = (own.end - own.start) // self._shares
            low = own.start + part * self._share
            a, b = max(edge, low), min(edge + parameter.numel(), low + part)
            if a < b:
                piece = nn.Parameter(self._values[a:b])
                piece.grad = self.gradients[a:b]
                yield Piece(name, parameter, piece, a - edge, b - edge)

    @property
    def sums(self) -> Sequence[Tensor]:
        """Gradients of which this replica has the whole sum after a reduction, in flat pieces."""
        if self._values is None or self._copy_group is not None:
            return [self.gradients]
        return [self._parts(self.gradients, segment)[self._share] for segment in self.segments]

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
                for segment in self.segments:
                    for number, part in enumerate(self._parts(self.gradients, segment)):
                        if number != self._share:
                            part.zero_()
            elif self._kept:  # each replica contributes alike to a mean of those that arrive
                self.gradients.div_(dist.get_world_size(summed_by))
            elif dist.get_rank(summed_by) > 0:
                self.clear()
        if self._summed and self._partial is not None:
            self._partial.keep_once((parameter, parameter.grad) for _, parameter in self.named)
        self._summed = False
        self._works, self._left = [], self.edges[-1]  # padding is not summed: that of copies differs

    def leave(self, start: int) -> None:
        """Begin to sum the gradients from number ``start`` on, except those whose sum has begun.

        ``start`` begins a parameter, and a segment if replicas share out the sums. Partial gradients are first summed
        over the tensor-parallel ranks, so that every replica sums whole ones.
        """
        end, self._left = self._left, min(start, self._left)
        group = self._copy_group or self._group
        if start < end and self._partial is not None:
            edges = zip(self.named, self.edges, strict=False)
            self._partial.sum((parameter, parameter.grad) for (_, parameter), edge in edges if start <= edge < end)
        if start >= end or group is None:
            return
        if self._copy_group is not None or self._values is None:
            self._works.append(dist.all_reduce(self.gradients[start:end], group=group, async_op=True))
            return
        for segment in self.segments:
            if start <= segment.start < end:
                self._works.append(self._begin_sum(group, segment))

    def leave_between(self, start: int, end: int, loss: BoundedLoss | None = None) -> Sequence[Pending]:
        """Begin to sum these gradients over the replicas; all numbers leave so, in any order, and each replica has all.

        Return what is begun: nothing for a single replica, or an empty range. With ``loss`` a share of them may be left
        out, which the next sum of the same range has.
        """
        self._left = 0
        if start == end or self._group is None:
            return []
        own = self.gradients[start:end]
        if loss is None:
            self._works.append(dist.all_reduce(own, group=self._group, async_op=True))
        else:
            if start not in self._kept:
                self._kept[start] = loss.room(end - start, own)
            mean = partial(loss.mean, own, self._kept[start], self._group, times=self._group.size())
            self._works.append(messages(self._group).ask(mean))
        return self._works[-1:]

    def _begin_sum(self, group: dist.ProcessGroup, segment: Segment) -> Pending:
        parts = self._parts(self.gradients, segment)
        if dist.get_backend(group) == "gloo":
            return messages(group).sum(parts)
        whole = self.gradients[segment.start : segment.end]
        begun: Pending = dist.reduce_scatter_tensor(parts[self._share], whole, group=group, async_op=True)
        return begun

    def reduce(self) -> None:
        """Sum the gradients over the replicas: all gradients, or (ZeRO-1) this replica's share."""
        self.leave(0)
        _finish(self._works)
        self._summed = True

    def finish(self) -> None:
        """Sum the gradients over the tensor-parallel ranks, if there is no reduction over replicas."""
        if self._partial is not None and self._left:
            self.reduce()

    def gather(self, segment: Segment) -> Pending:
        """Begin to give every replica the parameters of a segment, each share by its owner, after an update."""
        assert self._values is not None
        assert self._group is not None
        parts = self._parts(self._values, segment)
        if dist.get_backend(self._group) == "gloo":
            return messages(self._group).gather(parts)
        whole = self._values[segment.start : segment.end]
        begun: Pending = dist.all_gather_into_tensor(whole, parts[self._share], group=self._group, async_op=True)
        return begun

    def _parts(self, buffer: Tensor, segment: Segment) -> Sequence[Tensor]:
        """Return the share of each replica in a segment of a flat buffer."""
        return [*buffer[segment.start : segment.end].chunk(self._shares)]

    def clear(self) -> None:
        """Zero the gradients."""
        self.gradients.zero_()
        self._summed = False


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _finish(works: Iterable[Pending]) -> None:
    for work in works:
        work.wait()
