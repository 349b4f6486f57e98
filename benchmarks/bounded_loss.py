"""Steps with bounded loss on slow links, predicted and measured, beside torch's sums and overlapped ones of a plan.

The loopback device is slow as in `benchmarks.overlapped_reduction`, and both directions share its rate. A step is
predicted from what was measured without sums and from bytes: the link carries them from the end of the last layer's
backward on.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from benchmarks.overlapped_reduction import INSIDE, LATENCY_US, LAYERS, RANKS, Engine, in_turn, slowed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.solve import solve
from pipeplan_executor import BoundedLoss, Pipeline, bounded_loss_hook, launch
from pipeplan_executor.calibrate.machine import KIND

RATES = {0.2: 512, 1.0: 1024}
"""Width of the layers by gigabits per second of the loopback device."""
BUDGETS = (0.0, 0.1, 0.4)
SAMPLES, ROUNDS, STEPS = 128, 5, 1
OVERLAPPED, TORCH = "plan, overlapped", "torch"


def main() -> None:
    """Print a table for each rate, in a namespace with a slow loopback device."""
    for rate in [float(os.environ[INSIDE])] if INSIDE in os.environ else RATES:
        slowed("bounded_loss", table, rate)


def width() -> int:
    """Return the width of the layers for the device of this namespace."""
    return RATES[float(os.environ[INSIDE])]


def perceptron() -> Workload:
    """Workload of equal linear layers."""
    wide = width()
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(wide, wide), nn.Tanh())]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, wide, generator=generator), torch.randn(samples, wide, generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.mse_loss)


def cluster(rate: float) -> Cluster:
    """Return a cluster of this machine's workers with the slow link, whose measurement would take minutes."""
    link = Link(round(rate * 1e9 / 8 / 2), LATENCY_US * 1000, unit_overlap=False)
    kind = DeviceKind(KIND, memory=4 << 30)
    return Cluster("slow loopback", {KIND: kind}, (Node((KIND,) * RANKS, link),), overlap=Overlap.COPY)


def table() -> None:
    """Print predicted and measured steps at the rate of this namespace."""
    rate = float(os.environ[INSIDE])
    model = profile_workload(
        "benchmarks.bounded_loss:perceptron", micro_batches=(SAMPLES,), name="perceptron", crowd=RANKS
    )
    plan = solve(
        model, cluster(rate), RANKS * SAMPLES, depths=(1,), replicas=(RANKS,), recompute="none", zero=(0,)
    ).plan
    times, alone, backward = launch(measured, RANKS, plan, timeout=600, device="cpu")
    size = LAYERS * width() * (width() + 1) * 4
    told = {OVERLAPPED: plan.step_time / 1e6}
    for name, budget in {TORCH: 0.0, **{hooked(budget): budget for budget in BUDGETS}}.items():
        sums = 1e3 * (2 - budget) * (RANKS - 1) * size / (rate * 1e9 / 8)
        told[name] = alone + max(sums - backward * (LAYERS - 1) / LAYERS, 0)
    print(f"{rate:g} Gbit/s: {size / 1e6:.1f} MB of gradients on {RANKS} ranks; {alone:.0f} ms without sums")
    print(f"{'':22} {'predicted':>10} {'median':>10} {'off':>7} {'over torch':>10}")
    for name, row in times.items():
        middle = median(row)
        print(
            f"{name:22} {told[name]:7.0f} ms {middle:7.0f} ms {middle / told[name] - 1:+7.1%} "
            f"{median(times[TORCH]) / middle:10.2f}"
        )


def hooked(budget: float) -> str:
    """Name of torch's data parallelism with the hook."""
    return f"hook, {budget:.0%} lost"


def measured(plan: Plan) -> tuple[dict[str, list[float]], float, float]:
    """Milliseconds of the steps of each engine, of one without sums, and of the backward in it; of the slower rank."""
    torch.set_num_threads(1)
    workload = perceptron()
    inputs, targets = workload.draw(RANKS * SAMPLES, torch.Generator().manual_seed(0))
    rows = slice(dist.get_rank() * SAMPLES, (dist.get_rank() + 1) * SAMPLES)
    backwards: list[float] = []
    one_layer = 4 * width() ** 2 / 2**20  # MiB

    def parallel(budget: float | None, sums: bool = True) -> Callable[[], None]:
        model = DistributedDataParallel(perceptron().module, bucket_cap_mb=one_layer)
        if budget is not None:
            model.register_comm_hook(BoundedLoss(budget), bounded_loss_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> None:
            model.require_backward_grad_sync = sums
            loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
            began = time.monotonic()
            loss.backward()
            if not sums:
                backwards.append(1e3 * (time.monotonic() - began))
            optimizer.step()
            optimizer.zero_grad()

        return step

    def nothing() -> None:
        pass

    pipeline = Pipeline(plan, perceptron)
    engines: dict[str, Engine] = {
        "alone": (parallel(None, sums=False), nothing),
        TORCH: (parallel(None), nothing),
        **{hooked(budget): (parallel(budget), nothing) for budget in BUDGETS},
        OVERLAPPED: (partial(pipeline.step, inputs, targets), pipeline.wait),
    }
    times = in_turn(engines, STEPS, ROUNDS)
    backward = torch.tensor([median(backwards)])
    dist.all_reduce(backward, op=dist.ReduceOp.MAX)
    return times, median(times.pop("alone")), float(backward)


if __name__ == "__main__":
    main()
