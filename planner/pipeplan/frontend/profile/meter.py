"""The allocator's own account of a pass: how many bytes lived at each mark, and at most since the mark before.

On CUDA the allocator keeps that peak itself. On a CPU torch's profiler records every allocation, with those inside
the kernels (a convolution's reordered copies); only buffers that a library takes past torch's allocator stay unseen.
"""

import os
from types import TracebackType
from typing import Any, Protocol

import torch

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
