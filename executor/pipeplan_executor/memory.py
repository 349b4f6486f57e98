"""What a rank really holds at its peak."""

from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget_peak() -> None:
    """From now on `peak` counts anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # then the peak is that of the whole process


def peak() -> int:
    """Bytes: what CUDA's allocator held at most; on a CPU the most resident memory of the process, runtime included."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return _field("VmHWM")


def resident() -> int:
    """Bytes that the process holds now."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else _field("VmRSS")


def _field(name: str) -> int:
    if not _STATUS.exists():  # not Linux: the best that is portable
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
