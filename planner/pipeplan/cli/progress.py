"""Progress lines on standard error while the solver works."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeplan.core.units import format_time
from pipeplan.search.branch_and_bound import OnProgress

SECONDS = 1.0
"""Least time between two lines if standard error is a file; a better plan is printed at once."""


def line(incumbent: int | None, bound: int, left: int) -> str:
    """One progress line: ``'plan 12.3 ms   bound 12.1 ms   gap 1.6 %   5 open'``."""
    plan = "none yet" if incumbent is None else format_time(incumbent)
    gap = "-" if not incumbent else f"{max(incumbent - bound, 0) / incumbent:.2%}"
    return f"plan {plan:>10}   bound {format_time(bound):>10}   gap {gap:>8}   {left} open"


@contextmanager
def solving(quiet: bool = False) -> Iterator[OnProgress]:
    """Callback for `pipeplan.solve`: one line rewritten in place on a terminal, a line per change elsewhere."""
    if quiet:
        yield lambda *_: None
        return
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("solving") as status:
            yield lambda *state: status.update("solving  " + line(*state))
        return
    best: int | None = None
    printed = 0.0

    def show(incumbent: int | None, bound: int, left: int) -> None:
        nonlocal best, printed
        better, now = incumbent != best, time.monotonic()
        if better or (now - printed >= SECONDS and left):
            best, printed = incumbent, now
            print("solving  " + line(incumbent, bound, left), file=sys.stderr)

    yield show
