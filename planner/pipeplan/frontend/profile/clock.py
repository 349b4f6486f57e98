"""When something happens on a device. Marks cost little; their distances are asked for later."""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Sets marks on a device's time line."""

    def mark(self) -> Any:
        """A mark at this point of the work handed to the device."""

    def settle(self) -> None:
        """Wait until the device has passed every mark."""

    def between(self, start: Any, end: Any) -> int:
        """Nanoseconds from one mark to a later one, after `settle`."""


class CpuClock:
    """On a CPU the work is done when the call returns.

    With several threads this is wall time. With one thread it is that thread's own time, which on an idle core is the
    same, and which does not count what other programs do on a busy machine (page faults do count). Both passes run in
    the calling thread.
    """

    def __init__(self, threads: int = 1) -> None:
        self._now = time.thread_time_ns if threads == 1 else time.perf_counter_ns

    def mark(self) -> int:
        """Nanoseconds."""
        return self._now()

    def settle(self) -> None:
        """Nothing is ever under way."""

    def between(self, start: int, end: int) -> int:
        """Their difference."""
        return end - start


class CudaClock:
    """CUDA events in the current stream, so that nothing waits while it is measured."""

    def mark(self) -> Any:
        """An event behind everything launched so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def between(self, start: Any, end: Any) -> int:
        """CUDA tells milliseconds, to about half a microsecond."""
        milliseconds = float(start.elapsed_time(end))
        return max(0, round(milliseconds * 1e6))


def clock_for(device: torch.device, threads: int) -> Clock:
    """The clock of a device; ``threads`` are those that a CPU computes with."""
    return CudaClock() if device.type == "cuda" else CpuClock(threads)
