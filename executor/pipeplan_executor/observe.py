"""What a rank tells about itself while it runs: when every action began and ended."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pipeplan.schedule import Action


def now() -> int:
    """Nanoseconds of the steady clock that all processes of one host share."""
    return time.monotonic_ns()


class Listener(Protocol):
    """Hears what a rank does, as it does it."""

    def __call__(self, action: Action | None) -> None:
        """An action begins, or (None) the last one has ended."""


@dataclass
class Recorder:
    """Keeps the start and end of every action since `clear`, and tells a listener."""

    spans: list[tuple[Action, int, int]] = field(default_factory=list)
    listener: Listener | None = None

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Around an action."""
        if self.listener is not None:
            self.listener(action)
        start = now()
        yield
        self.spans.append((action, start, now()))
        if self.listener is not None:  # not after an error: then the listener keeps the action that failed
            self.listener(None)

    def extend(self) -> None:
        """The last action ends only now."""
        action, start, _ = self.spans[-1]
        self.spans[-1] = (action, start, now())

    def clear(self) -> None:
        """Forget what was recorded."""
        self.spans = []
