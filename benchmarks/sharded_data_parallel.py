"""Gradients and parameters in shards on a slow link: predicted and measured steps of one stage, beside torch's own.

Levels 2 and 3 of ZeRO on two replicas over the loopback device of `benchmarks.overlapped_reduction`, in turn with plain
loops of `fully_shard`, with torch's own collectives.
"""

from functools import partial

import torch
import torch.distributed as dist
from benchmarks.overlapped_reduction import (
    LAYERS,
    MICRO_BATCHES,
    RANKS,
    SAMPLES,
    WIDTH,
    Engine,
    in_turn,
    perceptron,
    show,
    slow_cluster,
    slowed,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, launch

LEVELS = (2, 3)


def main() -> None:
    """Print the table, in a namespace with a slow loopback device."""
    slowed("sharded_data_parallel", table)


def table() -> None:
    """Print predicted and measured steps."""
    model = profile_workload(
        "benchmarks.overlapped_reduction:perceptron", micro_batches=(SAMPLES,), name="perceptron", crowd=RANKS
    )
    cluster = slow_cluster()
    batch = RANKS * MICRO_BATCHES * SAMPLES
    plans = {
        f"level {zero}": solve(
            model, cluster, batch, depths=(1,), replicas=(RANKS,), recompute="none", zero=(zero,)
        ).plan
        for zero in LEVELS
    }
    print(f"{LAYERS} layers of {4 * WIDTH * (WIDTH + 1) / 1e6:.1f} MB, {MICRO_BATCHES} micro-batches a replica")
    times: dict[str, list[float]] = launch(measured, RANKS, plans, timeout=300, device="cpu")
    show(
        {name: plan.predicted / 1e6 for name, plan in plans.items()},
        times,
        {name: f"torch {name.split()[-1]}" for name in times},
    )


def measured(plans: dict[str, Plan]) -> dict[str, list[float]]:
    """Milliseconds of the steps of each engine, of the slower rank."""
    torch.set_num_threads(1)
    inputs, targets = perceptron().draw(RANKS * MICRO_BATCHES * SAMPLES, torch.Generator().manual_seed(0))
    pipelines = {name: Pipeline(plan, perceptron) for name, plan in plans.items()}
    engines: dict[str, Engine] = {name: (partial(p.step, inputs, targets), p.wait) for name, p in pipelines.items()}
    own = [
        (inputs[m * SAMPLES : (m + 1) * SAMPLES], targets[m * SAMPLES : (m + 1) * SAMPLES])
        for m in range(dist.get_rank(), RANKS * MICRO_BATCHES, RANKS)
    ]
    plain = {f"torch {zero}": (partial(step, zero, *sharded(zero), own), lambda: None) for zero in LEVELS}
    return in_turn({**engines, **plain})


def sharded(zero: int) -> tuple[FSDPModule, torch.optim.Optimizer]:
    """Return a model that torch shards layer by layer, and its optimiser."""
    module, mesh = perceptron().module, init_device_mesh("cpu", (RANKS,))
    for layer in module:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=zero == 3)
            layer.set_force_sum_reduction_for_comms(True)  # gloo has no means
    return fully_shard(module, mesh=mesh), torch.optim.SGD(module.parameters(), lr=1e-3)


def step(
    zero: int,
    module: FSDPModule,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Train on one batch in micro-batches; weights that are not freed behind forwards stay gathered until the last."""
    for number, (x, y) in enumerate(batches):
        module.set_reshard_after_backward(number == len(batches) - 1 or zero == 3)
        (nn.functional.mse_loss(module(x), y) / MICRO_BATCHES).backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
