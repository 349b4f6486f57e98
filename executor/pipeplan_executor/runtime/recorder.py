"""Recorder of a rank's actions: when each began and ended.

Times are the processor's. On a GPU they tell when actions were handed to it, not when they ran.
"""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeplan.core.schedule import Action


def now() -> int:
    """Nanoseconds of the steady clock that all processes of one host share."""
    return time.monotonic_ns()


def host() -> str:
    """Whose clock `now` reads: where two processes get the same here, it is the same clock."""
    boot = Path("/proc/sys/kernel/random/boot_id")  # containers of one machine have many names, and one clock
    return boot.read_text().strip() if boot.exists() else platform.node()


@dataclass
class Recorder:
    """Keeps the start and end of every action since `clear`."""

    spans: list[tuple[Action, int, int]] = field(default_factory=list)

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Around an action."""
        start = now()
        yield
        self.spans.append((action, start, now()))

    def clear(self) -> None:
        """Forget what was recorded."""
        self.spans = []
