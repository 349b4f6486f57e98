"""Clocks and memory meters of a device, both read at marks.

A clock's marks cost little; the times between them are read later. A meter gives the bytes allocated at each mark, and
the peak since the mark before. On CUDA the allocator keeps that peak itself. On a CPU torch's profiler records every
allocation, including those inside the kernels (a convolution's reordered copies). Only buffers that a library allocates
without torch's allocator are missed.
"""

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch

LEAD = 50_000_000
"""Cycles in which a program launches what a CUDA stream takes, about a thousand kernels: some 30 ms."""
ROW = 3
"""Runs behind a first one by which the pace is measured."""


class Clock(Protocol):
    """Clock that sets marks on a device's time line."""

    def lead(self) -> None:
        """Let the program run ahead of the device, so that what is measured next waits for no launch."""

    def pace(self, run: Callable[[], None], /) -> int:
        """Nanoseconds that a run takes between others, launches included; 0 where marks include these."""

    def mark(self) -> Any:
        """Set a mark behind the work submitted to the device so far."""

    def settle(self) -> None:
        """Wait until the device has passed every mark."""

    def between(self, start: Any, end: Any) -> int:
        """Nanoseconds between one mark and a later one, after `settle`."""


class CpuClock:
    """Clock of a CPU, where the work is done when the call returns.

    With several threads it measures wall time. With one thread it measures that thread's processor time. This is the
    same on an idle core, and excludes other programs on a busy machine (page faults do count). Both passes run in the
    calling thread.
    """

    def __init__(self, threads: int = 1) -> None:
        self._now = time.thread_time_ns if threads == 1 else time.perf_counter_ns

    def lead(self) -> None:
        """Do nothing: nothing is launched."""

    def pace(self, _: Callable[[], None], /) -> int:
        """Return 0 without a run."""
        return 0

    def mark(self) -> int:
        """Current time in nanoseconds."""
        return self._now()

    def settle(self) -> None:
        """Return at once, as no work is pending on a CPU."""

    def between(self, start: int, end: int) -> int:
        """Difference of the marks in nanoseconds."""
        return end - start


class CudaClock:
    """Clock of CUDA events in the current stream, which does not synchronise during the measurement.

    Where kernels are short, a device waits for the program that launches them. In training it seldom does, since the
    program is about a thousand launches ahead by then. So it gets that lead before a measurement, and how long a pass
    takes in a row of others is measured by itself::

        program   launches ──────────────┐ of all marks
        device    busy (`lead`)          ▶ mark   mark   mark
    """

    def lead(self) -> None:
        """Keep the device busy while the program launches as much as the queue takes."""
        busy: Any = torch.cuda._sleep  # takes cycles of the device's clock
        busy(LEAD)

    def pace(self, run: Callable[[], None], /) -> int:
        """Return the nanoseconds of one of several runs in a row."""
        run()
        start = self.mark()
        for _ in range(ROW):
            run()
        end = self.mark()
        self.settle()
        return self.between(start, end) // ROW

    def mark(self) -> Any:
        """Record an event behind all launched work."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize()

    def between(self, start: Any, end: Any) -> int:
        """Nanoseconds between two events, to about half a microsecond (CUDA's resolution)."""
        milliseconds = float(start.elapsed_time(end))
        return max(0, round(milliseconds * 1e6))


def clock_for(device: torch.device, threads: int) -> Clock:
    """The clock of a device; ``threads`` is the number of threads on a CPU."""
    return CudaClock() if device.type == "cuda" else CpuClock(threads)


Reading = tuple[int, int]
"""Bytes allocated at a mark, and the peak since the mark before; both beyond the bytes allocated at the start."""


class Meter(Protocol):
    """Context that measures memory: set marks within it, then read them."""

    def __enter__(self) -> "Meter": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def mark(self) -> None:
        """Set the next mark."""

    def readings(self) -> list[Reading]:
        """One reading per mark, in order."""


class CudaMeter:
    """Meter by the caching allocator's counters, which change at launch, so that no synchronisation is needed."""

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
        """Read the counters, and reset the peak."""
        level, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        self._readings.append((int(level) - self._base, int(peak) - self._base))
        torch.cuda.reset_peak_memory_stats()

    def readings(self) -> list[Reading]:
        """One for each mark, in order."""
        return self._readings


class CpuMeter:
    """Meter by torch's profiler, which records allocations, with empty ranges as marks among them."""

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
        """Record an empty range."""
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
