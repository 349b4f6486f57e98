"""Memory of a rank: peak and current.

On a CPU this is the private memory of the process. Pages of libraries do not count: processes share them, and the
system may drop them, so their number depends on the machine's history rather than on the run.
"""

from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget_peak() -> None:
    """Reset the counter of `peak`."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # the peak is then that of the whole process


def peak() -> int:
    """Return the peak in bytes: of CUDA's allocator, or on a CPU of resident memory, runtime included.

    Linux has one peak for private and library pages together. The latter hardly change once a step has run, so their
    current number is subtracted.
    """
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return _field("VmHWM") - _field("RssFile")


def resident() -> int:
    """Return the current memory of the process in bytes."""
    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else _field("VmRSS") - _field("RssFile")


def _field(name: str) -> int:
    if not _STATUS.exists():  # not Linux: the portable number, which includes library pages
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if name.startswith("Vm") else 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
