"""Overlapped reduction on a slow link: predicted and measured steps of one stage on two replicas, beside torch's own.

The loopback device is slowed down to ``GIGABITS`` inside a user and network namespace of its own (`unshare`, `tc`),
where that is permitted. It counts both directions, so each direction of the link has half of it. All plans and
`DistributedDataParallel` run in the same processes, in turn. A turn is some steps behind a first one that does not
count, since gathers of level 1 of ZeRO run on into the next step.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median, quantiles

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.pipeline import layer_counts
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, describe_machine, launch

GIGABITS, LATENCY_US = 1, 200
QUEUE = 2**26
"""Bytes that wait at the slow device: so many that it drops none, which TCP would send again."""
WIDTH, LAYERS, SAMPLES, MICRO_BATCHES = 1024, 6, 512, 2
RANKS, ROUNDS, WARMUP, STEPS = 2, 8, 1, 3
INSIDE = "PIPEPLAN_SLOW_LOOPBACK"
ENGINES = ("behind", "overlapped", "level 1")


def main() -> None:
    """Print the table, in a namespace with a slow loopback device."""
    slowed("overlapped_reduction", table)


def slowed(name: str, table: Callable[[], None], gigabits: float = GIGABITS) -> None:
    """Print the table of a benchmark: in a namespace with a slow loopback device, which it enters first."""
    if INSIDE in os.environ:
        table()
        return
    if (why := not_permitted()) is not None:
        print(f"not measured: {why}")
        return
    slow = f"tc qdisc add dev lo root tbf rate {1000 * gigabits:g}mbit burst 512k limit {QUEUE}"
    command = f'ip link set lo up && {slow} && exec "$0" -m benchmarks.{name}'
    subprocess.run(
        ["unshare", "-rn", "bash", "-c", command, sys.executable],
        env={**os.environ, INSIDE: str(gigabits), "GLOO_SOCKET_IFNAME": "lo"},
        check=True,
    )


def not_permitted() -> str | None:
    """Why there can be no slow loopback device here; None if there can."""
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian: util-linux, iproute2)"
    tried = subprocess.run(["unshare", "-rn", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() or "no user namespace" if tried.returncode else None


def slow_cluster() -> Cluster:
    """Return this machine with the slow link, over which the speed beside collectives is measured."""
    here: Cluster = describe_machine(RANKS)
    link = Link(round(float(os.environ[INSIDE]) * 1e9 / 8 / 2), LATENCY_US * 1000, unit_overlap=False)
    return replace(here, name="slow loopback", nodes=(replace(here.nodes[0], link=link),))


def perceptron() -> Workload:
    """Workload of equal linear layers."""
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, WIDTH, generator=generator), torch.randn(samples, WIDTH, generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.mse_loss)


def table() -> None:
    """Print predicted and measured steps."""
    model = profile_workload(
        "benchmarks.overlapped_reduction:perceptron", micro_batches=(SAMPLES,), name="perceptron", crowd=RANKS
    )
    cluster = slow_cluster()
    plans = {
        name: solve(
            model,
            cluster,
            RANKS * MICRO_BATCHES * SAMPLES,
            depths=(1,),
            replicas=(RANKS,),
            recompute="none",
            overlap_reduction=name != "behind",
            zero=(int(name == "level 1"),),
        ).plan
        for name in ENGINES
    }
    print(
        f"beside collectives: {cluster.devices[0].kind.speed_beside_collectives:.0%} of the speed of computation alone"
    )
    sums = layer_counts(plans["overlapped"].pipeline.stages[0].buckets)
    print(f"{LAYERS} layers of {4 * WIDTH * (WIDTH + 1) / 1e6:.1f} MB, {MICRO_BATCHES} micro-batches a replica")
    print(f"buckets of {', '.join(map(str, sums))} layers")
    times: dict[str, list[float]] = launch(measured, RANKS, plans, timeout=300, device="cpu")
    show({name: plan.predicted / 1e6 for name, plan in plans.items()}, times, dict.fromkeys(times, "torch"))


def show(predicted: dict[str, float], times: dict[str, list[float]], beside: dict[str, str]) -> None:
    """Print each engine's predicted and measured step, and its ratio to another engine's."""
    print(f"{'':12} {'predicted':>10} {'median':>9} {'quartiles':>17} {'off':>7} {'over torch':>10}")
    for name, row in times.items():
        torchs = median(times[beside[name]])
        low, middle, high = quantiles(row, n=4)
        told = predicted.get(name)
        off = "" if told is None else f"{middle / told - 1:+.1%}"
        first = "" if told is None else f"{told:.1f} ms"
        print(f"{name:12} {first:>10} {middle:6.1f} ms {low:7.1f} … {high:<7.1f} {off:>7} {middle / torchs:10.3f}")


def measured(plans: dict[str, Plan]) -> dict[str, list[float]]:
    """Milliseconds of the steps of each engine, of the slower rank."""
    torch.set_num_threads(1)
    pipelines = {name: Pipeline(plan, perceptron) for name, plan in plans.items()}
    workload, rank = perceptron(), dist.get_rank()
    inputs, targets = workload.draw(RANKS * MICRO_BATCHES * SAMPLES, torch.Generator().manual_seed(0))
    parallel = DistributedDataParallel(workload.module)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)
    own = [range(m * SAMPLES, (m + 1) * SAMPLES) for m in range(rank, RANKS * MICRO_BATCHES, RANKS)]

    def plain() -> None:
        for rows in own:
            last = rows is own[-1]
            parallel.require_backward_grad_sync = last
            x, y = inputs[rows.start : rows.stop], targets[rows.start : rows.stop]
            (nn.functional.mse_loss(parallel(x), y) / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    engines: dict[str, Engine] = {name: (partial(p.step, inputs, targets), p.wait) for name, p in pipelines.items()}
    return in_turn({**engines, "torch": (plain, lambda: None)})


Engine = tuple[Callable[[], object], Callable[[], None]]
"""One step, and what ends a turn."""


def in_turn(engines: dict[str, Engine], steps: int = STEPS, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the milliseconds of each engine's steps, of the slower rank: means of ``steps``; engines take turns."""
    rows: dict[str, list[float]] = {name: [] for name in engines}
    for number, (name, (step, settle)) in product(range(WARMUP + rounds), tuple(engines.items())):
        dist.barrier()
        step()
        began = time.monotonic()
        for _ in range(steps):
            step()
        took = torch.tensor([1e3 * (time.monotonic() - began) / steps], dtype=torch.float64)
        settle()
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if number >= WARMUP:
            rows[name].append(took.item())
    return rows


if __name__ == "__main__":
    main()
