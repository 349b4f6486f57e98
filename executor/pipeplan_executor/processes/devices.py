"""Device of a rank: a GPU of its own, or the CPU."""

import os

import torch

from pipeplan.core.choices import known
from pipeplan.core.errors import InputError


def choose(wanted: str, local: int) -> str:
    """Return ``'cuda'`` or ``'cpu'``, for ``local`` processes on this machine.

    Parameters
    ----------
    wanted : {'auto', 'cpu', 'cuda'}
        ``auto``: the GPUs, if the machine has any.

    Raises
    ------
    InputError
        If there are fewer GPUs than processes.
    """
    known(wanted, "device", ("auto", "cpu", "cuda"))
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not there):
        return "cpu"
    if there < local:
        raise InputError(
            f"{local} processes on this machine need a GPU each, and it has {there}; "
            "solve for fewer devices, use more machines, or run on the CPU (--device cpu)"
        )
    return "cuda"


def take(wanted: str) -> torch.device:
    """Return this rank's device and make it the current one; ``LOCAL_RANK`` is its number on the machine."""
    place = int(os.environ.get("LOCAL_RANK", "0"))
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or place + 1
    kind = choose(wanted, int(local))
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", place)
    torch.cuda.set_device(device)
    return device


def here() -> torch.device:
    """Return the device that `take` assigned to this rank."""
    import torch.distributed as dist

    on_gpu = "nccl" in dist.get_backend_config()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
