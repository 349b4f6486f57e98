"""Progress lines on standard error while the solver works."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pipeplan.core.units import format_time
from pipeplan.core.wording import counted

SECONDS = 1.0
"""Least time between two lines if standard error is a file; a better plan is printed at once."""


class Progress:
    """Callback for `pipeplan.solve`: what is searched, the best value with its unit, its bound, and the nodes left."""

    def __init__(self, what: str, figure: str, write: Callable[[str], None], *, seldom: bool) -> None:
        self.what, self._figure, self._write, self._seldom = what, figure, write, seldom
        self._best: int | None = None
        self._printed = 0.0

    def __call__(self, incumbent: int | None, bound: int, left: int) -> None:
        """Write a line; if seldom, a better plan at once and anything else after `SECONDS`."""
        better, now = incumbent != self._best, time.monotonic()
        if self._seldom and not better and (now - self._printed < SECONDS or not left):
            return
        self._best, self._printed = incumbent, now
        self._write(f"solving {self.what}: {line(incumbent, bound, left, self._figure)}")


def line(incumbent: int | None, bound: int, left: int, figure: str = "step time") -> str:
    """One progress line: ``'step time 12.3 ms   bound 12.1 ms   gap 1.65%   5 nodes open'``."""
    plan = "no plan yet" if incumbent is None else f"{figure} {format_time(incumbent)}"
    gap = "-" if not incumbent else f"{max(incumbent - bound, 0) / incumbent:.2%}"
    return f"{plan:<{len(figure) + 10}}   bound {format_time(bound):>8}   gap {gap:>6}   {counted(left, 'node')} open"


@contextmanager
def solving(what: str, figure: str = "step time") -> Iterator[Progress]:
    """Context with a callback: one line rewritten in place on a terminal, a line per change elsewhere.

    Parameters
    ----------
    what : str
        What is searched, like ``'gpt2-small on 8-v100-nvlink'``.
    figure : str
        What the values are (`pipeplan.core.job.Objective.figure`).
    """
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(f"solving {what}")) as status:

            def write(text: str) -> None:
                status.update(Text(text, no_wrap=True, overflow="ellipsis"))

            yield Progress(what, figure, write, seldom=False)
        return
    yield Progress(what, figure, partial(print, file=sys.stderr), seldom=True)
