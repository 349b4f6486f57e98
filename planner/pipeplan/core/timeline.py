"""`Timeline`: when every action and transfer runs, and what every device holds."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pipeplan.core.schedule import Action


class Span(NamedTuple):
    """An action on a device, in nanoseconds. ``lane`` is 0, or 1 for the second lane of a two-lane device."""

    device: int
    lane: int
    action: Action
    start: int
    end: int


class TransferSpan(NamedTuple):
    """A tensor on its way from one stage to a neighbour.

    Its first byte leaves at ``start``, its last one at ``end``, and it is there at ``arrival``. Its wires are busy from
    ``start`` on for the transfer's occupancy, which ends at ``end`` but where a streamed tensor waits for its action.
    """

    source: int
    target: int
    micro_batch: int
    slice: int
    start: int
    end: int
    arrival: int


class Step(NamedTuple):
    """From ``time`` on, a device holds ``held`` bytes."""

    time: int
    held: int


@dataclass(frozen=True)
class Timeline:
    """A schedule on paper.

    Attributes
    ----------
    spans : tuple of Span
        In order of start.
    transfers : tuple of TransferSpan
        In order of start; transfers inside one device are absent.
    memory : tuple of tuple of Step
        One line a device.
    critical : tuple of Span or TransferSpan
        A longest path: each item could not start before the one ahead of it had ended (or, where tensors stream,
        before it had started); the last one ends at ``makespan``.
    """

    spans: tuple[Span, ...]
    transfers: tuple[TransferSpan, ...]
    memory: tuple[tuple[Step, ...], ...]
    critical: tuple[Span | TransferSpan, ...]

    @cached_property
    def makespan(self) -> int:
        """Nanoseconds from the first action's start to the last one's end."""
        return max((span.end for span in self.spans), default=0)

    @cached_property
    def peaks(self) -> tuple[int, ...]:
        """Most bytes that each device holds."""
        return tuple(max((step.held for step in line), default=0) for line in self.memory)

    def busy(self, device: int) -> int:
        """Nanoseconds in which a device runs at least one action."""
        return self._busy.get(device, 0)

    @cached_property
    def _busy(self) -> dict[int, int]:
        total: dict[int, int] = defaultdict(int)
        reach: dict[int, int] = defaultdict(int)
        for span in self.spans:
            device = span.device
            if span.end > reach[device]:
                total[device] += span.end - max(span.start, reach[device])
                reach[device] = span.end
        return dict(total)
