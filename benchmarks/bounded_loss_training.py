"""What bounded loss costs in training: losses after equally many steps, by share and by what is left out first.

Handwritten digits and characters as in `benchmarks.delayed_training`, under torch's data parallelism with the hook.
All ways of a seed begin with the same weights and see the same batches. Losses and accuracies are of data that is not
trained on. A rank's own gradients always arrive, so of all gradients a smaller share is left out than the budget.
"""

from collections.abc import Callable
from itertools import product
from statistics import mean
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.delayed_training import DATA, TRIALS, images, texts
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from pipeplan_executor import BoundedLoss, bounded_loss_hook, launch
from pipeplan_executor.optim.lossy.sums import at_random, energy

PARTS = {"digits": 2, "characters": 4}
"""Part of each batch of `benchmarks.delayed_training` that is taken."""
RANKS, SEEDS, STEPS = 2, 3, 40
BUDGETS = (0.1, 0.4)
BUILDS = {"images": images, "texts": texts}


def largest_first(chunks: Tensor, generator: torch.Generator) -> Tensor:
    """Importance by which the largest gradients are left out."""
    return -energy(chunks, generator)


WAYS: dict[str, dict[str, Any]] = {
    "least energy": {},
    "least energy, not returned": {"feedback": False},
    "at random, not returned": {"importance": at_random, "feedback": False},
    "largest first, not returned": {"importance": largest_first, "feedback": False},
}


def main() -> None:
    """Print losses of all ways of training."""
    print(f"{'':12} {'lost first':28} {'budget':>6} {'lost':>6} {'accuracy':>9} {'loss':>8}  of each seed", flush=True)
    for name in PARTS:
        if DATA[TRIALS[name].build]() is None:
            print(f"{name}: not measured, as scikit-learn is not installed")
            continue
        launch(rows, RANKS, name, timeout=900, device="cpu")


def rows(name: str) -> None:
    """Train in all ways; the first rank prints them."""
    for budget, way in [(0.0, "dense"), *product(BUDGETS, WAYS)]:
        lost, right, losses = zip(*(trained(name, budget, way, seed) for seed in range(SEEDS)), strict=True)
        if not dist.get_rank():
            print(
                f"{name:12} {way:28} {budget:6.0%} {mean(lost):6.1%} {mean(right):9.4f} {mean(losses):8.4f}  "
                + " ".join(f"{one:.4f}" for one in losses),
                flush=True,
            )


def trained(name: str, budget: float, way: str, seed: int) -> tuple[float, float, float]:
    """Return the share of all gradients that was left out, and accuracy and loss on other data behind the training."""
    torch.set_num_threads(1)
    trial = TRIALS[name]
    data = DATA[trial.build]()
    assert data is not None
    torch.manual_seed(seed)
    workload = BUILDS[trial.build]()
    model, state = DistributedDataParallel(workload.module), BoundedLoss(budget, seed=seed, **WAYS.get(way, {}))
    model.register_comm_hook(state, bounded_loss_hook)
    optimizer = trial.optimizer(model.parameters())
    generator, loss_of = torch.Generator().manual_seed(seed), workload.loss
    for _ in range(STEPS):
        inputs, targets = (rows.chunk(RANKS * PARTS[name])[dist.get_rank()] for rows in data(generator, False))
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
    share = torch.tensor([state.left_out / state.offered * (RANKS - 1) / RANKS])
    dist.all_reduce(share)
    others = torch.Generator().manual_seed(0)
    return float(share) / RANKS, *evaluated(model.module, loss_of, [data(others, True) for _ in range(4)])


def evaluated(
    module: torch.nn.Module, loss_of: Callable[..., Tensor], batches: list[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """Return accuracy and loss on these batches."""
    with torch.no_grad():
        found = [(module(inputs), targets) for inputs, targets in batches]
    right = mean(float((outputs.argmax(-1) == targets).float().mean()) for outputs, targets in found)
    return right, mean(float(loss_of(outputs, targets)) for outputs, targets in found)


if __name__ == "__main__":
    main()
