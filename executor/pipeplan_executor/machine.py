"""Describes this machine as a cluster of worker processes, by measurement.

Two processes exchange tensors of growing size through torch.distributed, both ways at once, as neighbours in a pipeline
and replicas in a reduction do; the time is fitted by latency + size / bandwidth (least squares on relative errors, over
medians). One way alone is two to three times as fast on 2 cores, because here processes move the bytes themselves.
"""

import os
import platform
from importlib import import_module
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from pipeplan.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan_executor.launcher import launch
from pipeplan_executor.memory import resident
from pipeplan_executor.observe import now

SIZES = tuple(2**power for power in range(12, 25, 2))
"""Bytes: 4 KiB to 16 MiB."""
ROUNDS = 15
KIND = "cpu-worker"


def describe_machine(processes: int = 2, timeout: float = 60.0) -> Cluster:
    """A cluster of ``processes`` equal CPU workers on this machine.

    Memory is each worker's share of what is free now; the link, and the bytes that a worker takes before it holds any
    layer, are measured between the first two of them.
    """
    bandwidth, latency, runtime = launch(_exchange, max(2, processes), timeout=timeout)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kind = DeviceKind(
        name=KIND,
        memory=free_memory() // processes,
        runtime=runtime,
        source=f"measured on {platform.node() or 'this machine'}, {cores} cores for {processes} processes",
    )
    node = Node((KIND,) * processes, Link(bandwidth, latency))
    notes = (f"{cores} cores; link measured over gloo, both ways at once",)
    return Cluster(f"{processes} workers of this machine", {KIND: kind}, (node,), overlap=Overlap.COPY, notes=notes)


def free_memory() -> int:
    """Bytes of memory that new processes may use."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _exchange() -> tuple[int, int, int]:
    """Bandwidth in bytes per second, latency in nanoseconds, bytes of a bare worker."""
    rank = dist.get_rank()
    bare = _bare_worker()
    ways = []
    for size in SIZES:
        tensor, buffer = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        times = []
        for _ in range(ROUNDS if rank < 2 else 0):
            start = now()
            sent = dist.isend(tensor, 1 - rank)
            dist.recv(buffer, 1 - rank)
            sent.wait()
            times.append(now() - start)
        ways.append(median(times[ROUNDS // 3 :]) if times else 0.0)
    dist.barrier()
    return (*fit_link(list(SIZES), ways), bare) if rank == 0 else (1, 0, bare)


def _bare_worker() -> int:
    """Bytes of a worker that holds no layer but has used everything that it will need: engine, kernels, optimiser."""
    import_module("pipeplan_executor.pipeline")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    for _ in range(2):
        module(torch.randn(2, 3, 8, 8)).sum().backward()
        optimizer.step()
    return resident()


def fit_link(sizes: list[int], times: list[float]) -> tuple[int, int]:
    """Bandwidth and latency that fit the times best, each error relative to its time.

    Minimises Σ ((latency + size / bandwidth) / time − 1)², which is linear in latency and 1 / bandwidth.
    """
    rows = [(1 / time, size / time) for size, time in zip(sizes, times, strict=True)]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    latency = (a1 * bb - b1 * ab) / determinant
    per_byte = (b1 * aa - a1 * ab) / determinant
    if latency < 0:  # then the line goes through the origin
        latency, per_byte = 0.0, b1 / bb
    return max(1, round(1e9 / max(per_byte, 1e-9))), round(latency)
