"""Sums front layers first on a slow link: predicted and measured steps, beside overlapped buckets and torch's own.

One stage on two replicas, whose first layers have most of the parameters, in a network namespace with a slow loopback
device (`benchmarks.overlapped_reduction`) of each of ``RATES``. `DistributedDataParallel` and all plans run in the same
processes, in turn: some steps without a barrier, behind a first one that does not count. Steps without sums say how
far the profile is off before anything is sent.
"""

import os
from bisect import bisect_left
from functools import partial
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from benchmarks.overlapped_reduction import INSIDE, RANKS, Engine, in_turn, show, slow_cluster, slowed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, launch

RATES = {1.0: (1536, 1024), 0.2: (768, 4096)}
"""Gigabits per second; width of the first layers and samples of a replica with which sums take about as long as passes.
"""
WIDE, NARROW = 4, 6
"""Number of wide layers, and of those of a third of the width behind them."""
ROUNDS, STEPS = 4, 4
LOST = 0.1
"""Share of the gradients that may be lost, in a further plan."""
ALONE, TORCH = "no sums", "torch"


def main() -> None:
    """Print the table of each rate, in a namespace with a slow loopback device."""
    for gigabits in [float(os.environ[INSIDE])] if INSIDE in os.environ else RATES:
        slowed("front_first", table, gigabits)


def size() -> tuple[int, int]:
    """Return the width of the first layers and the samples of a replica, for the device of this namespace."""
    return RATES[float(os.environ[INSIDE])]


def front_heavy() -> Workload:
    """Workload of linear layers, the first of them wide."""
    wide, _ = size()
    widths = [*[wide] * (WIDE + 1), *[wide // 3] * NARROW]
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        given, wanted = (torch.randn(samples, width, generator=generator) for width in (widths[0], widths[-1]))
        return given, wanted

    return Workload(nn.Sequential(*layers), draw, nn.functional.mse_loss)


def table() -> None:
    """Print predicted and measured steps."""
    wide, samples = size()
    source = "benchmarks.front_first:front_heavy"
    model = profile_workload(source, micro_batches=(samples,), name="front heavy", crowd=RANKS)
    cluster = slow_cluster()
    plans: dict[str, Plan] = {}
    for name, budget in (("front first", 0.0), (f"{LOST:.0%} may be lost", LOST)):
        result = solve(
            model,
            cluster,
            RANKS * samples,
            depths=(1,),
            replicas=(RANKS,),
            recompute="none",
            zero=(0,),
            objective="period",
            front_first=True,
            loss_budget=budget,
        )
        assert result.front_first is not None and result.front_first.plan is not None
        plans |= {"overlapped": result.plan, name: result.front_first.plan}
    own = plans["front first"].priority[0]
    print(
        f"{os.environ[INSIDE]} Gbit/s in both directions together; {WIDE} layers of {4e-6 * wide * wide:.1f} MB, "
        f"{NARROW} of {4e-6 * (wide // 3) ** 2:.1f} MB, {samples} samples a replica"
    )
    print(
        f"beside collectives: {cluster.devices[0].kind.speed_beside_collectives:.0%} of the speed alone; "
        f"{sum(own.chunks.values())} chunks of at most {own.chunk / 1e6:.1f} MB"
    )
    times, buckets = launch(measured, RANKS, plans, timeout=400, device="cpu")
    told = {name: plan.predicted / 1e6 for name, plan in plans.items()}
    told |= {ALONE: parallel_step(model, cluster, []), TORCH: parallel_step(model, cluster, buckets)}
    show(told, times, dict.fromkeys(times, TORCH))


def parallel_step(model: Model, cluster: Cluster, buckets: list[int]) -> float:
    """Milliseconds of a step whose gradients are summed in ``buckets`` of bytes, from the last layer on.

    A bucket waits for the backward of the layer that fills it and for the bucket before it; the update waits for all.
    """
    costs, link = model.profiles[0].costs, cluster.nodes[0].link
    sizes = [4 * layer.parameters for layer in reversed(model.layers)]
    filled, computed = list(accumulate(sizes)), list(accumulate(cost.backward for cost in reversed(costs)))
    assert link.bandwidth is not None
    summed, ends = 0, 0.0
    for size in buckets:
        summed += size
        ready = computed[bisect_left(filled, summed)]
        ends = max(ends, ready) + 2 * (RANKS - 1) / RANKS * (size * 1e9 / link.bandwidth + RANKS * link.latency)
    return (sum(cost.forward + cost.update for cost in costs) + max(ends, computed[-1])) / 1e6


def measured(plans: dict[str, Plan]) -> tuple[dict[str, list[float]], list[int]]:
    """Milliseconds of the steps of each engine, of the slower rank, and the bytes of torch's buckets."""
    torch.set_num_threads(1)
    _, samples = size()
    pipelines = {name: Pipeline(plan, front_heavy) for name, plan in plans.items()}
    workload, rank = front_heavy(), dist.get_rank()
    inputs, targets = workload.draw(RANKS * samples, torch.Generator().manual_seed(0))
    parallel = DistributedDataParallel(workload.module)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)
    x, y = (each[rank * samples : (rank + 1) * samples] for each in (inputs, targets))

    def plain(sums: bool) -> None:
        parallel.require_backward_grad_sync = sums
        nn.functional.mse_loss(parallel(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    engines: dict[str, Engine] = {name: (partial(p.compute, inputs, targets), p.wait) for name, p in pipelines.items()}
    engines |= {ALONE: (partial(plain, False), lambda: None), TORCH: (partial(plain, True), lambda: None)}
    times = in_turn(engines, STEPS, ROUNDS)
    sizes = parallel._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return times, [int(size) for size in str(sizes).split(",")]


if __name__ == "__main__":
    main()
