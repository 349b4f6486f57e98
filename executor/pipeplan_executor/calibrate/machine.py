"""Description of this machine as a cluster of worker processes, by measurement.

Two processes exchange tensors of increasing size through torch.distributed, in both directions at once, like neighbours
in a pipeline. The time is fitted by latency + size / bandwidth (least squares on relative errors, over medians). One
direction alone is two to three times as fast on 2 cores, because on a CPU the processes move the bytes themselves.

Then all processes sum large tensors, like replicas. The formula of `costs.collectives.Ring` converts that time to a
bandwidth; its ratio to the fitted one is the link's efficiency in collectives. Gloo reached about a half on 2 cores,
since it adds and copies between rounds.

Then they compute while they sum. What that takes longer than the computation alone, divided by the time of the sum
alone, is the part of its speed that computation loses beside a collective: much where the processes move the bytes
themselves, little where a slow network leaves the cores free.

At last they run layers whose parameters are in shards (`pipeplan_executor.stages.fully_sharded`), and the same layers
whole. The difference is what a gather or a sum of one layer takes, fitted by a constant and a rate. On 2 cores that
was some 1.5 ms, and two to three times the rounds' time: most of it is packing, unpacking and new memory.

Then pairs of them run a decoder block as a team (`sharded_block`): what operators take longer there.
"""

import os
import platform
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import PipeplanError
from pipeplan.core.figures import real, whole
from pipeplan.core.job import WHOLLY_SHARDED
from pipeplan.core.options import LONGEST
from pipeplan.core.units import format_bytes, format_time
from pipeplan.costs.collectives import Ring
from pipeplan.frontend.profile.allocator import return_free_memory
from pipeplan_executor.calibrate.plausible import doubt_of_exchanges, doubt_of_sums
from pipeplan_executor.calibrate.sharded_block import Excess, excess_of_shards
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.processes.launcher import launch
from pipeplan_executor.runtime.recorder import now
from pipeplan_executor.stages.fully_sharded import FullySharded
from pipeplan_executor.train.memory import resident

SIZES = tuple(2**power for power in range(12, 25, 2))
"""Bytes: 4 KiB to 16 MiB."""
ROUNDS = 15
SUMMED = tuple(2**power for power in (22, 24, 26))
"""Bytes that are summed: 4 to 64 MiB, the sizes of a stage's gradients."""
SUMS = 10
"""Sums of each size; the first two do not count."""
BESIDE = 2**24
"""Bytes that are summed beside computation: 16 MiB."""
FACTOR = 256
"""Rows and columns of the matrices that are multiplied meanwhile."""
TURNS = 8
"""Sums alone, products alone and both together; the first turn does not count."""
SIDES = (64, 256, 512, 1024)
"""Rows and columns of the layers in shards: 16 KiB to 4 MiB of parameters."""
LAYERS = 4
"""Layers in shards."""
PASSES = 10
"""Forwards and backwards through them; the first two do not count."""
WIDTHS = (256, 1024, 256, 8192)
"""Widths between the products of a worker without layers: those of a perceptron, and of a head over a vocabulary."""
KIND = "cpu-worker"
ATTEMPTS = 3
"""Measurements of a machine, of which the first that can be true counts."""

MOST_PROCESSES = 1024
"""Largest number of workers on one machine."""


def describe_machine(processes: int = 2, timeout: float = 60.0) -> Cluster:
    """Return a cluster of ``processes`` equal CPU workers on this machine.

    Memory is each worker's share of the free memory. The link, and the bytes of a worker without layers, are measured
    between the first two workers. What cannot be true is measured again.

    Raises
    ------
    PipeplanError
        If it cannot be true after all `ATTEMPTS`, with what was measured.

    Examples
    --------
    >>> cluster = pipeplan_executor.describe_machine(2)  # takes a minute  # doctest: +SKIP
    """
    whole(processes, "processes (at least one worker)", 1, MOST_PROCESSES)
    real(timeout, "the timeout (seconds)", most=LONGEST, above=True)
    measured = _plausible(max(2, processes), timeout)
    count, link = cores(), measured.link()
    kind = DeviceKind(
        name=KIND,
        memory=free_memory() // processes,
        runtime=measured.bare,
        speed_beside_collectives=measured.speed_beside_collectives,
        shard_overhead=measured.shards.by_operator(link),
        source=f"measured on {platform.node() or 'this machine'}, {count} cores for {processes} processes",
    )
    node = Node((KIND,) * processes, link)
    notes = (f"{count} cores; link measured over gloo, both ways at once; all-reduce among {max(2, processes)}",)
    return Cluster(f"{processes} workers of this machine", {KIND: kind}, (node,), overlap=Overlap.COPY, notes=notes)


def _plausible(processes: int, timeout: float) -> "Measured":
    """Measure until the result can be true."""
    doubts = []
    for _ in range(ATTEMPTS):
        measured: Measured = launch(_measure, processes, timeout=timeout, device="cpu")
        if not (doubt := measured.doubt()):
            return measured
        doubts.append(doubt)
    raise PipeplanError(
        f"this machine cannot be measured: {doubts[-1]}; {ATTEMPTS} attempts gave no better. Other programs keep it "
        f"busy, or {processes} processes are too many for its {cores()} cores: end them, ask for fewer processes, or "
        "write the link into a cluster file yourself (pipeplan new cluster)"
    )


def as_text(cluster: Cluster) -> str:
    """Describe the result of `describe_machine`."""
    kind, link = cluster.devices[0].kind, cluster.nodes[0].link
    return (
        f"{cluster.name}: {format_bytes(kind.memory or 0)} each, {format_bytes(kind.runtime)} of them taken by the "
        f"runtime\nlink: {(link.bandwidth or 0) / 1e9:.2f} GB/s, {link.collective_efficiency:.0%} of it in an "
        f"all-reduce, latency {format_time(link.latency)}; a layer's gather or sum (ZeRO-2, -3) at "
        f"{link.unit_efficiency:.0%} of that, and {format_time(link.unit_overhead)} more\n"
        f"computation beside an all-reduce: {kind.speed_beside_collectives:.0%} of its speed alone\n"
        f"an operator on a team takes {format_time(kind.shard_overhead)} longer"
    )


def free_memory() -> int:
    """Return the memory available to new processes, in bytes."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


@dataclass(frozen=True)
class Measured:
    """Nanoseconds by bytes of an exchange, an all-reduce, and a gather or sum of a layer in shards.

    ``ranks`` took part in the latter two; ``shards`` is what a block takes longer on a team; ``bare`` is the bytes of
    a worker without layers.
    """

    exchanges: dict[int, float]
    sums: dict[int, float]
    units: dict[int, float]
    speed_beside_collectives: float
    shards: Excess
    ranks: int
    bare: int

    def doubt(self) -> str:
        """Return why these measurements cannot be true; empty if they can."""
        bandwidth, _ = fit_link(list(self.exchanges), list(self.exchanges.values()))
        return (
            doubt_of_exchanges(self.exchanges, bandwidth)
            or doubt_of_sums(self.sums, "a sum")
            or doubt_of_sums(self.units, "a gather of a layer's shards")
        )

    def link(self) -> Link:
        """Return the fitted link."""
        link = Link(*fit_link(list(self.exchanges), list(self.exchanges.values())))
        link = replace(link, collective_efficiency=collective_efficiency(link, self.ranks, self.sums))
        return with_units(link, self.ranks, self.units)


def collective_efficiency(link: Link, ranks: int, sums: dict[int, float]) -> float:
    """Return the fraction of the bandwidth at which the ring formula gives the measured times: median, two digits."""
    found = []
    for size, time in sums.items():
        ring = Ring(ranks, link)
        found.append(int(ring.times(np.array([size]))[0]) / max(time - ring.base, 1.0))
    return max(round(median(found), 2), 0.01)


def with_units(link: Link, ranks: int, units: dict[int, float]) -> Link:
    """Return the link with the overhead and the efficiency that give a layer's gathers and sums their times."""
    bandwidth, constant = fit_link(list(units), list(units.values()))
    half = Ring(ranks, link).one_way
    size = max(units)
    efficiency = int(half.times(np.array([size]))[0]) / max(size * 1e9 / bandwidth, 1.0)
    return replace(
        link,
        unit_overhead=max(constant - half.base, 0),
        unit_efficiency=max(round(min(efficiency, 1.0), 2), 0.01),
        unit_overlap=False,  # on CPUs each is waited for
    )


def speed_beside(computing: float, summing: float, both: float) -> float:
    """Return the speed of computation beside a sum, relative to its speed alone: two digits, from 0 to 1.

    ``computing`` takes longer than ``summing``. While the sum runs, computation loses what ``both`` take longer.
    """
    return min(max(round(1 - (both - computing) / summing, 2), 0.0), 1.0)


def _measure() -> Measured:
    bare = _bare_worker()
    exchanges = {size: _exchange(size) for size in SIZES}
    dist.barrier()
    sums = {size: _sum(size) for size in SUMMED}
    units, speed = dict(map(_unit, SIDES)), _speed_beside_sums()
    return Measured(exchanges, sums, units, speed, excess_of_shards(), dist.get_world_size(), bare)


def _exchange(size: int) -> float:
    """Return the nanoseconds in which the first two ranks exchange ``size`` bytes; 0 on other ranks."""
    rank = dist.get_rank()
    if rank > 1:
        return 0.0
    tensor, buffer = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    times = []
    for _ in range(ROUNDS):
        start = now()
        sent = dist.isend(tensor, 1 - rank)
        dist.recv(buffer, 1 - rank)
        sent.wait()
        times.append(now() - start)
    return median(times[ROUNDS // 3 :])


def _sum(size: int) -> float:
    """Return the nanoseconds in which all ranks sum ``size`` bytes."""
    gradients = torch.zeros(size // 4)
    times = []
    for _ in range(SUMS):
        dist.barrier()
        start = now()
        dist.all_reduce(gradients)
        times.append(now() - start)
    return median(times[2:])


def _speed_beside_sums() -> float:
    """Return the speed of computation while all ranks sum `BESIDE` bytes, relative to its speed alone."""
    gradients, factor = torch.zeros(BESIDE // 4), torch.rand(FACTOR, FACTOR)

    def took(sums: int, products: int) -> int:
        """Nanoseconds of some sums and products that begin together."""
        dist.barrier()
        start = now()
        works = [dist.all_reduce(gradients, async_op=True) for _ in range(sums)]
        for _ in range(products):
            torch.mm(factor, factor)
        for work in works:
            work.wait()
        return now() - start

    # Twice as long as a sum, so that a sum that is slower beside it ends first; the same on all ranks.
    alone = [median([took(*what) for _ in range(TURNS)][1:]) for what in ((1, 0), (0, TURNS))]
    products = torch.tensor(2 * TURNS * alone[0] / alone[1])
    dist.all_reduce(products, op=dist.ReduceOp.MAX)
    many = int(products) + 1
    return median([speed_beside(took(0, many), took(1, 0), took(1, many)) for _ in range(TURNS)][1:])


def _unit(side: int) -> tuple[int, float]:
    """Return bytes, and the nanoseconds of a gather or a sum, of a layer in shards; it has two gathers and a sum."""

    def layers() -> list[torch.nn.Module]:
        return [torch.nn.Linear(side, side, bias=False) for _ in range(LAYERS)]

    whole, split = torch.nn.Sequential(*layers()), layers()
    group = dist.group.WORLD
    assert group is not None
    sharded = FullySharded(WHOLLY_SHARDED, group, torch.device("cpu"))
    for layer in split:
        sharded.shard([layer])
    stage = torch.nn.Sequential(*split)
    sharded.finish(stage)
    return 4 * side**2, max(_pass(stage, side) - _pass(whole, side), 1.0) / (3 * LAYERS)


def _pass(stage: torch.nn.Module, side: int) -> float:
    """Return the nanoseconds of a forward and a backward of one row."""
    times = []
    for _ in range(PASSES):
        dist.barrier()
        start = now()
        stage(torch.zeros(1, side)).sum().backward()
        times.append(now() - start)
    return median(times[2:])


def _bare_worker() -> int:
    """Return the bytes of a worker without layers after it has used engine, kernels and optimiser.

    Libraries keep buffers for matrix products, some for each shape. So there are products of several shapes, as large
    as those of real layers.
    """
    import_module("pipeplan_executor.train.pipeline")
    images = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 8))
    products = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(WIDTHS)))
    optimizer = torch.optim.SGD([*images.parameters(), *products.parameters()], lr=0.0)
    for _ in range(2):
        images(torch.randn(2, 3, 8, 8)).sum().backward()
        products(torch.randn(WIDTHS[0], WIDTHS[0], requires_grad=True)).sum().backward()
        optimizer.step()
    del images, products, optimizer
    return_free_memory()
    return resident()


def fit_link(sizes: list[int], times: list[float]) -> tuple[int, int]:
    """Fit bandwidth (bytes per second) and latency (ns) to times (ns), with errors relative to each time.

    Minimises Σ ((latency + size / bandwidth) / time − 1)², which is linear in latency and 1 / bandwidth.
    """
    # normal equations of the linear least squares in latency and 1 / bandwidth
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
