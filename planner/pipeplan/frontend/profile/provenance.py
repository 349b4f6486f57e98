"""Where and when a profile was measured, and with which versions."""

import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from pipeplan.core.model import Provenance
from pipeplan.frontend.profile.allocator import allocator_here


def provenance(device: torch.device, threads: int, crowd: int = 1, precision: str | None = None) -> Provenance:
    """The account that goes with every measured number."""
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    if device.type == "cuda":
        source = str(torch.cuda.get_device_name())
        versions["cuda"] = str(torch.version.cuda)
    else:
        source = f"{cpu_name()}, {threads} thread{'s' * (threads != 1)}"
        source += f", {crowd} workers busy" * (crowd > 1) + f", {allocator_here()}"
    source += f", {precision}" if precision is not None else ""
    return Provenance("measured", source, datetime.now(UTC).strftime("%Y-%m-%d"), versions)


def device_label(device: torch.device) -> str:
    """The name of the kind of device, where the user gives none."""
    if device.type == "cpu":
        return "cpu-worker"
    return str(torch.cuda.get_device_name()).lower().replace("nvidia ", "").replace(" ", "-")


def cpu_name() -> str:
    """What the operating system calls the processor."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
