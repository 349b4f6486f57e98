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
from helpers.distributed.models import layers_of
from helpers.plans import plan_for, with_priority
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor import BoundedLoss, Pipeline, bounded_loss_hook
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.optim.lossy import arrivals
from pipeplan_executor.optim.lossy.sums import CHUNK, at_random
from pipeplan_executor.stages.source import draw
from pipeplan_executor.zoo import mlp

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
    return same_everywhere(own), state.left_out / state.offered


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


def wide_mlp() -> Workload:
    """A perceptron whose layers have several chunks for each of four owners."""
    return mlp(widths=(32, 96, 96, 96, 8))


def lossy_pipeline(lost: float, **options: Any) -> Pipeline:
    """A pipeline of one stage on all ranks that sums front layers first, and may leave out this share of gradients."""
    workload = wide_mlp()
    names = layers_of(workload)
    schedule = FAMILIES["gpipe"].write((dist.get_world_size(),), dist.get_world_size())
    plan = plan_for(workload.module, names, (0, len(names)), schedule)
    return Pipeline(with_priority(plan, 1, lost), wide_mlp, seed=5, **options)


def planned_sums(steps: int) -> tuple[float, float, bool]:
    """What a plan's sums leave out.

    How far gradients of several steps without update, and what is kept, are from those without loss; the norm of what
    is kept; and whether all ranks have the same weights, bit by bit, after so many steps.
    """
    summed = {}
    for lost in (0.0, 0.3):
        pipeline = lossy_pipeline(lost, dtype=torch.float64)
        for number in range(3):
            pipeline.compute(*draw(pipeline.workload, pipeline.plan.batch, 5, torch.float64, number), update=False)
        pipeline.wait()
        [part] = pipeline.updates.optimizers[0].parts
        assert isinstance(part, Flat)
        summed[lost] = part.gradients.clone()
    kept = torch.zeros_like(summed[0.0])
    for start, rest in part._kept.items():
        assert rest is not None
        own = rest[: len(kept) - start]
        kept[start : start + len(own)] += own
    dist.all_reduce(kept)
    error = greatest(float((summed[0.3] + kept - summed[0.0]).abs().max()))
    pipeline = lossy_pipeline(0.1)
    for number in range(steps):
        pipeline.compute(*draw(pipeline.workload, pipeline.plan.batch, 5, torch.float32, number))
    own = torch.cat([p.detach().view(-1) for _, p in pipeline.named_parameters()])
    return error, float(kept.norm()), same_everywhere(own)


def refused_plans() -> list[str]:
    """Errors of a plan that may lose gradients in fp16: of a scaled loss, and of weights."""
    found = []
    for options in ({"precision": "fp16"}, {"dtype": torch.float16}):
        try:
            lossy_pipeline(0.1, **options)
        except PipeplanError as error:
            found.append(str(error))
    return found


def same_everywhere(own: Tensor) -> bool:
    """Whether these numbers are the same on all ranks, bit by bit, and finite."""
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return bool(own.isfinite().all()) and all(torch.equal(own, other) for other in every)


def sum_for_ever(rank: int, world: int, file: str, timeout: float, ready: Any, told: Any) -> None:
    """Sum on one rank of a group that meets in a file, until an error; tell its text."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=timeout)
    ready.wait()  # all have started: ranks that are being imported do not use up the time in which they must meet
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
