"""Recorder of the start and end of a rank's actions.

Times are taken on the CPU. On a GPU they are the times at which actions were launched, not those at which they ran.
"""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeplan.core.schedule import Action


def now() -> int:
    """Return nanoseconds of the monotonic clock that all processes of one host share."""
    return time.monotonic_ns()


def host() -> str:
    """Return a name of the clock that `now` reads: processes with the same name share the clock."""
    boot = Path("/proc/sys/kernel/random/boot_id")  # containers of one machine have many names, and one clock
    return boot.read_text().strip() if boot.exists() else platform.node()


@dataclass
class Recorder:
    """Start and end of every action since `clear`, in nanoseconds; a `Pipeline` has those of its last step."""

    spans: list[tuple[Action, int, int]] = field(default_factory=list)

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Context that records an action."""
        start = now()
        yield
        self.spans.append((action, start, now()))

    def clear(self) -> None:
        """Discard all records."""
        self.spans = []
