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
    """Wall time: on a CPU the work is done when the call returns."""

    def mark(self) -> int:
        """Nanoseconds of the steady clock."""
        return time.perf_counter_ns()

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


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock() if device.type == "cuda" else CpuClock()
