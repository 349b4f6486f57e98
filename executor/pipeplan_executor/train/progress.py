"""Progress lines on standard error while a plan runs: loss, step time beside the prediction, memory."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeplan.core.plan import Plan
from pipeplan.core.units import format_bytes, format_time

SECONDS = 1.0
"""Between two lines where standard error is a file; the first and the last step are told in any case."""
Tell = Callable[[int, float, int, Sequence[int]], None]
"""``tell(step, loss, nanoseconds, peaks)``: steps count from 1, peaks are bytes of every rank."""


def line(plan: Plan, total: int, step: int, loss: float, took: int, peaks: Sequence[int]) -> str:
    """``'step 3 of 7   loss 2.3026   123.4 ms (+2.7% of 120.1 ms)   peaks 364 MiB, 296 MiB'``."""
    off = f" ({took / plan.step_time - 1:+.1%} of {format_time(plan.step_time)})" if plan.step_time else ""
    held = ", ".join(map(format_bytes, peaks))
    return f"step {step} of {total}   loss {loss:.4f}   {format_time(took)}{off}   peaks {held}"


@contextmanager
def running(plan: Plan, total: int, quiet: bool = False) -> Iterator[Tell]:
    """Tells of steps: one line that renews itself on a terminal, a line now and then elsewhere.

    Nothing is drawn between two steps: whatever runs beside a rank takes time from it.
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
    told = -SECONDS

    def show(step: int, loss: float, took: int, peaks: Sequence[int]) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= SECONDS or step == total:
            told = now
            print(line(plan, total, step, loss, took, peaks), file=sys.stderr, flush=True)

    yield show
