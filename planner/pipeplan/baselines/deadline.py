"""A deadline for what a heuristic computes: `check_deadline` is called on the way, and raises once it has passed.

How long a programme over layers takes depends on what fits, which no estimate beforehand knows::

    with ending(time.monotonic() + 2):
        planner.arrange(model, cluster, job, micro_batch)
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from pipeplan.core.errors import PipeplanError

_until: ContextVar[float] = ContextVar("until", default=inf)


class OutOfTime(PipeplanError):  # noqa: N818 (a limit was reached, nothing is wrong)
    """A computation was ended at its deadline."""


@contextmanager
def ending(until: float) -> Iterator[None]:
    """Set the deadline, by `time.monotonic`, of what is computed inside."""
    token = _until.set(until)
    try:
        yield
    finally:
        _until.reset(token)


def check_deadline() -> None:
    """Raise `OutOfTime` if the deadline has passed."""
    if time.monotonic() > _until.get():
        raise OutOfTime("the time was over before the heuristic had its plan")
