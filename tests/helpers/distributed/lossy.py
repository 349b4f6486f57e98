"""Workers for the tests of sums with bounded loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from helpers.distributed.everywhere import greatest
from pipeplan.core.errors import InputError
from pipeplan_executor import BoundedLoss, bounded_loss_hook
from pipeplan_executor.optim.lossy import arrivals
from pipeplan_executor.optim.lossy.sums import CHUNK, at_random

NUMBERS = 40 * CHUNK + 17
STEPS = 12
WAYS: dict[str, dict[str, Any]] = {
    "energy": {"budget": 0.1},
    "random": {"budget": 0.4, "importance": at_random},
    "in time": {"budget": 0.4, "deadline": 60.0},
    "too late": {"budget": 0.4, "deadline": 1e-9},
    "half in time": {"budget": 0.4, "deadline": 60.0},
    "nothing lost": {"budget": 0.0},
}


def group_and_random() -> tuple[dist.ProcessGroup, torch.Generator]:
    """All ranks, and random numbers of this one."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD, torch.Generator().manual_seed(7 + dist.get_rank())


def over_ranks(values: Tensor) -> Tensor:
    """Mean over the ranks, without loss."""
    summed = values.double().clone()
    dist.all_reduce(summed)
    return summed / dist.get_world_size()


@contextmanager
def clock(way: str) -> Iterator[None]:
    """Context in which segments are small, and on the first rank the deadline passes behind the first request."""
    seconds = iter([0.0] * 2 + [100.0] * 1000)
    late = way == "half in time" and dist.get_rank() == 0
    fake = SimpleNamespace(monotonic=lambda: next(seconds))
    with mock.patch.multiple(arrivals, SEGMENT=CHUNK * 8 * 2, **({"time": fake} if late else {})):
        yield


def returned() -> dict[str, tuple[float, float]]:
    """By way: how far sums and what they keep are from the gradients of all steps, and the share that was left out."""
    group, random = group_and_random()
    found = {}
    for way, options in WAYS.items():
        loss, error = BoundedLoss(**options), torch.zeros(NUMBERS, dtype=torch.float64)
        kept = loss.room(NUMBERS, error)
        for _ in range(STEPS):
            values = torch.randn(NUMBERS, generator=random, dtype=torch.float64)
            error += over_ranks(values)
            with clock(way):
                loss.mean(values, kept, group)
            error -= values
        if kept is not None:
            error -= over_ranks(kept[:NUMBERS])
        shares = over_ranks(torch.tensor([loss.left_out / loss.offered]))
        found[way] = greatest(float(error.abs().max())), float(shares)
    return found


def deviations(budget: float, sums: int, chunks: int) -> float:
    """Worst distance of a mean over masks from the gradient, in standard errors: of the first part, over many sums."""
    group, random = group_and_random()
    own = torch.randn(CHUNK, generator=random, dtype=torch.float64)
    loss = BoundedLoss(budget, importance=at_random, feedback=False)
    means = torch.empty(sums, CHUNK, dtype=torch.float64)
    for number in range(sums):
        values = own.repeat(chunks * dist.get_world_size())
        loss.mean(values, None, group)
        means[number] = values.view(-1, CHUNK)[:chunks].mean(0)
    away = means.mean(0) - over_ranks(own)
    return float((away / (means.std(0) / sums**0.5)).abs().max())


class Drawn(nn.Module):
    """Parameters whose gradients are the inputs, of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ParameterList(
            nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in (700, 1, 9000, 257)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum of products."""
        return (torch.cat([*self.own]) * inputs).sum()


def hooked() -> float:
    """How far the gradients of a model with the hook, and what it keeps, are from those of all steps."""
    _, random = group_and_random()
    state, module = BoundedLoss(0.3), Drawn()
    model = DistributedDataParallel(module, bucket_cap_mb=0.02)
    model.register_comm_hook(state, bounded_loss_hook)
    wanted = torch.zeros(sum(p.numel() for p in module.own), dtype=torch.float64)
    for _ in range(STEPS):
        inputs = torch.randn(len(wanted), generator=random, dtype=torch.float64)
        wanted += over_ranks(inputs)
        model(inputs).backward()  # gradients of all steps are added up
    assert state.left_out
    kept = [state.kept[p].numbers[state.kept[p].start :][: p.numel()] for p in module.own]
    summed = torch.cat([p.grad for p in module.own if p.grad is not None])
    return greatest(float((summed + over_ranks(torch.cat(kept)) - wanted).abs().max()))


def equal_replicas(steps: int) -> tuple[bool, float]:
    """Whether all ranks have the same weights, bit by bit, after so many steps in bfloat16; share that was left out."""
    _, random = group_and_random()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4)).bfloat16()
    model = DistributedDataParallel(module)
    state = BoundedLoss(0.1)
    model.register_comm_hook(state, bounded_loss_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(16, 32, generator=random).bfloat16()
        nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
        optimizer.step()
    own = torch.cat([p.detach().view(-1) for p in module.parameters()])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    assert own.isfinite().all()
    return all(torch.equal(own, other) for other in every), state.left_out / state.offered


def overflow() -> tuple[bool, bool]:
    """Whether every rank sees the overflow of one, and whether the next sum is finite."""
    group, _ = group_and_random()
    loss, values = BoundedLoss(0.4), torch.ones(NUMBERS)
    kept = loss.room(NUMBERS, values)
    if dist.get_rank() == 0:
        values[::CHUNK] = torch.inf
    loss.mean(values, kept, group)
    seen, values = greatest(float(values.isfinite().all())) == 0, torch.ones(NUMBERS)
    loss.mean(values, kept, group)
    return seen, greatest(float(not values.isfinite().all())) == 0


def sum_for_ever(rank: int, world: int, file: str, timeout: float, ready: Any, told: Any) -> None:
    """Sum on one rank of a group that meets in a file, until an error; tell its text."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=patience)
    group, _ = group_and_random()
    loss, values = BoundedLoss(0.1, deadline=0.05), torch.ones(200 * CHUNK)
    kept = loss.room(len(values), values)
    ready.wait()
    try:
        while True:
            loss.mean(values, kept, group)
    except RuntimeError as error:
        told.put((rank, str(error)))


def unlike_bounds() -> str:
    """Error of ranks with unlike budgets."""
    group, _ = group_and_random()
    try:
        BoundedLoss(0.1 * (1 + dist.get_rank())).mean(torch.ones(NUMBERS), None, group)
    except InputError as error:
        return str(error)
    return ""
