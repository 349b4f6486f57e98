"""Clocks and memory meters of a device, both read at marks.

A clock's marks cost little; the times between them are read later. A meter gives the bytes alive at each mark, and the
most since the mark before. On CUDA the allocator keeps that peak itself. On a CPU torch's profiler records every
allocation, with those inside the kernels (a convolution's reordered copies); only buffers that a library takes past
torch's allocator stay unseen.
"""

import os
import time
from types import TracebackType
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


Reading = tuple[int, int]
"""Bytes alive at a mark, and the most alive since the mark before; both above the bytes alive at the start."""


class Meter(Protocol):
    """A context; within it, `mark` what happens; after it, read."""

    def __enter__(self) -> "Meter": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def mark(self) -> None:
        """Set the next mark."""

    def readings(self) -> list[Reading]:
        """One for each mark, in order."""


class CudaMeter:
    """Reads the caching allocator's counters; nothing has to wait, since they move when work is launched."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def __enter__(self) -> "CudaMeter":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._base = int(torch.cuda.memory_allocated())
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()

    def mark(self) -> None:
        """Read the counters, and start the peak anew."""
        level, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        self._readings.append((int(level) - self._base, int(peak) - self._base))
        torch.cuda.reset_peak_memory_stats()

    def readings(self) -> list[Reading]:
        """One for each mark, in order."""
        return self._readings


class CpuMeter:
    """Lets torch's profiler record allocations, with empty ranges as marks among them."""

    _MARK = "pipeplan mark"

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it writes to standard error otherwise
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        )

    def __enter__(self) -> "CpuMeter":
        self._profiler.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._profiler.__exit__(None, None, None)

    def mark(self) -> None:
        """Leave an empty range in the record."""
        with torch.profiler.record_function(self._MARK):
            pass

    def readings(self) -> list[Reading]:
        """One for each mark, in order."""
        events = [
            (event.start_ns(), event.name(), event.nbytes())
            for event in self._profiler.profiler.kineto_results.events()
            if event.name() in ("[memory]", self._MARK) and event.device_type() == torch.autograd.DeviceType.CPU
        ]
        level = peak = 0
        result: list[Reading] = []
        for _, name, change in sorted(events, key=lambda event: event[0]):
            if name == self._MARK:
                result.append((level, peak))
                peak = level
            else:
                level += change
                peak = max(peak, level)
        return result


def meter_for(device: torch.device) -> Meter:
    """The meter of a device."""
    return CudaMeter() if device.type == "cuda" else CpuMeter()
