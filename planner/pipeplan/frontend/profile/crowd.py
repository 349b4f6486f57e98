"""Busy siblings: other workers of a machine compete for its memory and caches while one is measured.

On a 2-core machine a second process that runs the same passes was seen to slow forward by 3 to 7 % and backward by 2 to
20 %, most where gradients are large: both processes then stream them through one memory.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from pipeplan.core.errors import PipeplanError
from pipeplan.frontend.profile.passes import Feed, run_pass

PATIENCE = 120.0
"""Seconds to wait for a sibling's first pass."""


@contextmanager
def busy_siblings(count: int, layers: Sequence[nn.Module], feed: Feed) -> Iterator[None]:
    """While the context is open, ``count`` other processes pass over the same layers, over and over.

    They are forked, so that they share the parameters; each has gradients and activations of its own.
    """
    if count == 0:
        yield
        return
    context = multiprocessing.get_context("fork")
    started = [context.Event() for _ in range(count)]
    siblings = [
        context.Process(target=_work, args=(layers, feed, event, os.getpid()), daemon=True) for event in started
    ]
    try:
        for sibling in siblings:
            sibling.start()
        if not all(event.wait(PATIENCE) for event in started):
            raise PipeplanError(f"a busy sibling made no pass within {PATIENCE:.0f} s; profile with crowd=1")
        yield
    finally:
        for sibling in siblings:
            sibling.kill()
            sibling.join()


def _work(layers: Sequence[nn.Module], feed: Feed, started: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the measuring process's to answer
    while os.getppid() == parent:  # an orphan stops
        run_pass(layers, feed, _ignore, _ignore)
        started.set()


def _ignore(_number: int) -> None:
    pass
