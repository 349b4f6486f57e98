"""Memory that a rank holds, at its peak and now.

On a CPU this is what the process has of its own. Pages of libraries do not count: processes share them, the system may
drop them, and how many of them are there says more about the machine's past than about the run.
"""

from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget_peak() -> None:
    """From now on `peak` counts anew."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # then the peak is that of the whole process


def peak() -> int:
    """Bytes: what CUDA's allocator held at most; on a CPU the most that was resident, runtime included.

    Linux keeps one peak for own and library pages together. The latter hardly change once a step has run, so those that
    are there now are taken off.
    """
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return _field("VmHWM") - _field("RssFile")


def resident() -> int:
    """Bytes that the process holds now."""
    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else _field("VmRSS") - _field("RssFile")


def _field(name: str) -> int:
    if not _STATUS.exists():  # not Linux: the best that is portable, which counts everything
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if name.startswith("Vm") else 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
