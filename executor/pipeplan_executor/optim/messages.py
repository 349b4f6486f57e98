"""Sums of gradients at their owners by messages between replicas, in the background.

Gloo's own reductions to one rank move twice as many bytes. Here each replica sends every other one the part that is
theirs, and adds what it receives to its own::

    rank 0   ┊ own ┊ to 1 ┊          rank 1   ┊ to 0 ┊ own ┊
               +=    └──────────────────────────▶ += : a segment after the other
                └───────────────────────────────┘

A thread does that while the backward runs on. All ranks of a group ask for their sums in one order.
"""

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Event, Thread

import torch
import torch.distributed as dist
from torch import Tensor

SEGMENT = 2**20
"""Numbers that are sent to a replica at once; so buffers stay small."""
TAG = 1
"""Of these messages: the tensors of a pipeline have others."""


class Sum:
    """A sum that was asked for."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._parts, self._ended = parts, Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait until this replica's part has the sum.

        Raises
        ------
        RuntimeError
            If another rank is gone.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def run(self, group: dist.ProcessGroup) -> None:
        """Exchange and add, whatever happens."""
        try:
            sum_at_owners(self._parts, group)
        except BaseException as error:  # told to whoever waits
            self._error = error
        finally:
            self._ended.set()


class Messages:
    """The thread that sums for one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._asked: SimpleQueue[Sum] = SimpleQueue()
        Thread(target=_run, args=(self._asked, group), daemon=True).start()

    def sum(self, parts: Sequence[Tensor]) -> Sum:
        """Begin to sum: ``parts`` has the numbers of each owner, by rank in the group; some may be empty."""
        asked = Sum(parts)
        self._asked.put(asked)
        return asked


def _run(asked: "SimpleQueue[Sum]", group: dist.ProcessGroup) -> None:
    while True:
        asked.get().run(group)


_MADE: dict[dist.ProcessGroup, Messages] = {}
"""One thread per group, as long as the process: groups are created once, too."""


def messages(group: dist.ProcessGroup) -> Messages:
    """Return what sums for a group."""
    if group not in _MADE:
        _MADE[group] = Messages(group)
    return _MADE[group]


def sum_at_owners(parts: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Add to this replica's part the same parts of all others; every rank of the group calls this.

    Parameters
    ----------
    parts : sequence of Tensor
        The numbers of each owner, by rank in the group: flat, contiguous, of the same lengths on all ranks.
    """
    rank, longest = dist.get_rank(group), max(map(len, parts))
    others = [i for i in range(len(parts)) if i != rank]
    for start in range(0, longest, SEGMENT):
        now = [part[start : start + SEGMENT] for part in parts]
        own = now[rank]
        received = [torch.empty_like(own) for _ in others] if len(own) else []
        works = [dist.isend(now[i], group=group, group_dst=i, tag=TAG) for i in others if len(now[i])]
        works += [dist.irecv(b, group=group, group_src=i, tag=TAG) for i, b in zip(others, received, strict=False)]
        for work in works:
            work.wait()
        for each in received:
            own.add_(each)
