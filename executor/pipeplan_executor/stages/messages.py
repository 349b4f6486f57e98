"""Sums and gathers of shares by messages between the replicas of a stage, also in the background.

Gloo's own reductions to one rank move twice as many bytes. Here each replica sends every other one the part that is
theirs, and adds what it receives to its own. In a gather it sends its own part to all::

    sum      rank 0   ┊ own ┊ to 1 ┊      rank 1   ┊ to 0 ┊ own ┊
                        +=    └─────────────────────────────▶ += : some numbers at once
                         └─────────────────────────┘

    gather   rank 0   ┊ own ┊      ┊      rank 1   ┊      ┊ own ┊
                         │     ▲                       ▲     │
                         ╰─────┼───────────────────────╯     │
                               ╰─────────────────────────────╯

One thread per group does what is asked for, in that order, while forwards and backwards run. All ranks of a group ask
for the same in one order.
"""

import atexit
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.costs.kept import AT_ONCE

TAG = 1
"""Of these messages: the tensors of a pipeline have others."""


class Request:
    """A sum or a gather that was asked for."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self._ended = act, Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait until this replica's part has the sum, or all parts are there.

        Raises
        ------
        RuntimeError
            If another rank is gone.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        """Send and receive, whatever happens."""
        try:
            self._act()
        except BaseException as error:  # told to whoever waits
            self._error = error
        finally:
            self._ended.set()


class Messages:
    """The thread that sums and gathers for one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._asked: SimpleQueue[Request] = SimpleQueue()
        self._gather: Request | None = None
        Thread(target=_run, args=(self._asked,), daemon=True).start()

    def sum(self, parts: Sequence[Tensor]) -> Request:
        """Begin to sum: ``parts`` has the numbers of each owner, by rank in the group; some may be empty."""
        return self.ask(partial(sum_at_owners, parts, self._group))

    def gather(self, parts: Sequence[Tensor]) -> Request:
        """Begin to gather: ``parts`` has the place of each owner's numbers, by rank in the group."""
        self._gather = self.ask(partial(gather_from_owners, parts, self._group))
        return self._gather

    def finish(self) -> None:
        """Wait until the last gather has ended, if there was one."""
        if self._gather is not None:
            self._gather.wait()

    def ask(self, act: Callable[[], None]) -> Request:
        """Begin to run a function that sends and receives, behind what was asked for before."""
        asked = Request(act)
        self._asked.put(asked)
        return asked


def _run(asked: "SimpleQueue[Request]") -> None:
    while True:
        asked.get().run()


_MADE: dict[dist.ProcessGroup, Messages] = {}
"""One thread per group, as long as the process: groups are created once, too."""


def messages(group: dist.ProcessGroup) -> Messages:
    """Return what sums and gathers for a group."""
    if group not in _MADE:
        _MADE[group] = Messages(group)
    return _MADE[group]


@atexit.register
def _finish() -> None:
    """Let the other replicas have this one's parameters before the process ends, unless an error ends it."""
    if hasattr(sys, "last_value"):  # an error that nothing caught
        return
    for each in _MADE.values():
        with suppress(RuntimeError):  # a replica that is gone needs none
            each.finish()


def sum_at_owners(parts: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Add to this replica's part the same parts of all others; every rank of the group calls this.

    Besides ``parts`` it takes `AT_ONCE` numbers for every other replica.

    Parameters
    ----------
    parts : sequence of Tensor
        The numbers of each owner, by rank in the group: flat, contiguous, of the same lengths on all ranks.
    """
    rank, longest = group.rank(), max(map(len, parts))
    others = [i for i in range(len(parts)) if i != rank]
    buffers = [torch.empty_like(parts[rank][:AT_ONCE]) for _ in others]
    for start in range(0, longest, AT_ONCE):
        now = [part[start : start + AT_ONCE] for part in parts]
        own = now[rank]
        received = [buffer[: len(own)] for buffer in buffers] if len(own) else []
        works = [group.send([now[i]], i, TAG) for i in others if len(now[i])]
        works += [group.recv([buffer], i, TAG) for i, buffer in zip(others, received, strict=False)]
        for work in works:
            work.wait()
        for each in received:
            own.add_(each)


def gather_from_owners(parts: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Fill all parts except this replica's own, each by its owner; every rank of the group calls this.

    Parameters
    ----------
    parts : sequence of Tensor
        As for `sum_at_owners`; nothing else is allocated.
    """
    rank = group.rank()
    others = [i for i in range(len(parts)) if i != rank]
    works = [group.send([parts[rank]], i, TAG) for i in others if len(parts[rank])]
    works += [group.recv([parts[i]], i, TAG) for i in others if len(parts[i])]
    for work in works:
        work.wait()
