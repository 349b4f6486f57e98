"""Progress lines on standard error during a run: loss, step time beside its prediction, memory."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeplan.core.plan import Plan
from pipeplan.core.units import format_bytes, format_time

SECONDS = 1.0
"""Seconds between two lines if standard error is a file; the first and last steps are always shown."""
OnStep = Callable[[int, float, int, Sequence[int]], None]
"""``on_step(step, loss, nanoseconds, peaks)``: steps count from 1, peaks are bytes of every rank."""


def line(plan: Plan, total: int, step: int, loss: float, took: int, peaks: Sequence[int]) -> str:
    """Return a line like ``'step 3 of 7   loss 2.3026   123.4 ms (+2.7% of 120.1 ms)   peaks 364 MiB, 296 MiB'``."""
    off = f" ({took / plan.step_time - 1:+.1%} of {format_time(plan.step_time)})" if plan.step_time else ""
    held = ", ".join(map(format_bytes, peaks))
    return f"step {step} of {total}   loss {loss:.4f}   {format_time(took)}{off}   peaks {held}"


@contextmanager
def running(plan: Plan, total: int, quiet: bool = False) -> Iterator[OnStep]:
    """Context that shows steps: one live line on a terminal, occasional lines elsewhere.

    Nothing is drawn between two steps, since a drawing thread would take time from the rank.
    """
    if quiet:
        yield lambda *_: None
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda *state: live.update(Text(line(plan, total, *state)), refresh=True)
        return
    last_line = -SECONDS

    def show(step: int, loss: float, took: int, peaks: Sequence[int]) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line >= SECONDS or step == total:
            last_line = now
            print(line(plan, total, step, loss, took, peaks), file=sys.stderr, flush=True)

    yield show
