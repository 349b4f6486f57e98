"""`Timeline`: start and end of every action and transfer, and the memory of every device over time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pipeplan.core.schedule import Action


class Span(NamedTuple):
    """Start and end of an action, in nanoseconds. ``lane`` is 0, or 1 for the second lane of a two-lane device."""

    device: int
    lane: int
    action: Action
    start: int
    end: int


class TransferSpan(NamedTuple):
    """The transfer of a tensor from one stage to a neighbour, in nanoseconds.

    Its first byte leaves at ``start``, its last one at ``end``, and it arrives at ``arrival``. Its link resources are
    busy from ``start`` on for the transfer's occupancy. That ends at ``end``, except where a streamed tensor waits for
    its action.
    """

    source: int
    target: int
    micro_batch: int
    slice: int
    start: int
    end: int
    arrival: int


class Step(NamedTuple):
    """A change of a device's memory: it holds ``held`` bytes from ``time`` on."""

    time: int
    held: int


@dataclass(frozen=True)
class Timeline:
    """A simulated schedule: spans of actions and transfers, memory over time, a critical path.

    Attributes
    ----------
    spans : tuple of Span
        In order of start.
    transfers : tuple of TransferSpan
        In order of start; transfers inside one device are absent.
    memory : tuple of tuple of Step
        One tuple per device.
    critical : tuple of Span or TransferSpan
        A longest path. Each item starts when its predecessor has ended (where tensors stream: has started); the last
        one ends at ``makespan``.
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
        """Largest number of bytes that each device holds."""
        return tuple(max((step.held for step in line), default=0) for line in self.memory)

    def busy(self, device: int, also: Iterable[tuple[int, int]] = ()) -> int:
        """Return the nanoseconds in which a device runs at least one action, or one of the intervals ``also`` lasts."""
        return _covered([*self._intervals.get(device, ()), *also])

    @cached_property
    def _intervals(self) -> Mapping[int, list[tuple[int, int]]]:
        """Start and end of the actions of each device."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for span in self.spans:
            found[span.device].append((span.start, span.end))
        return found


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of intervals (start, end)."""
    total, reach = 0, 0
    for start, end in sorted(intervals):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
