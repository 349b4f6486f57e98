"""Overhead of the engine per micro-batch on two ranks, compared with torch's Schedule1F1B.

The model is so small that nearly all time is overhead: two stages of three tiny layers. Both engines run 1F1B with the
same weights, batches and number of micro-batches, in the same processes, in turn; neither updates. ``model`` is the two
passes alone, without engine or network. Processor time is that of the rank's main thread, with messages and with empty
calls in their place. Wall time is measured between the first rank's start and the last one's end. All are per
micro-batch, medians over rounds, of the slower rank. A ratio below 1 means that pipeplan's engine costs less.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline as Priced
from pipeplan.core.pipeline import Stage, Transfer
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Schedule
from pipeplan.costs.chain import UNLIMITED
from pipeplan.frontend.parameters import held_by
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor import Pipeline, launch
from pipeplan_executor.stages.split import describe

WORLD, MICRO_BATCH, WIDTH = 2, 2, 16
MICRO_BATCHES = (4, 16, 64)
ROUNDS, WARMUP = 81, 5

Times = dict[str, tuple[float, float, float]]
"""Microseconds per micro-batch, by engine: processor time without messages and with them, wall time."""


def main() -> None:
    """Print a table."""
    print(f"{'m':>4} {'':23} {'model':>8} {'torch':>8} {'pipeplan':>9} {'ratio':>6}   µs per micro-batch")
    for count in MICRO_BATCHES:
        times: Times = launch(measured, WORLD, count, timeout=120, device="cpu")
        for place, what in enumerate(("processor, no messages", "processor", "wall")):
            model, torchs, ours = (times[name][place] for name in ("model", "torch", "pipeplan"))
            print(f"{count:4} {what:23} {model:8.0f} {torchs:8.0f} {ours:9.0f} {ours / torchs:6.2f}")


def tiny() -> Workload:
    """Workload of linear layers with tanh between them."""
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
    layers += [nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, WIDTH, generator=generator), torch.randn(samples, WIDTH, generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.mse_loss)


def measured(count: int) -> Times:
    """Run all engines in turn, on every rank."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    pipeline = Pipeline(plan_of(count), tiny)
    workload = tiny()
    inputs, targets = workload.draw(count * MICRO_BATCH, torch.Generator().manual_seed(0))
    one = (torch.zeros(MICRO_BATCH, WIDTH, requires_grad=rank > 0),)
    own = pipeline.modules[rank]
    alone = nn.Sequential(*own.layers)
    stage = PipelineStage(
        alone,
        rank,
        WORLD,
        torch.device("cpu"),
        input_args=one,
        output_args=(torch.zeros(MICRO_BATCH, WIDTH, requires_grad=True),),
    )
    schedule = Schedule1F1B(stage, count, loss_fn=nn.functional.mse_loss, scale_grads=False)

    def model() -> None:
        for x, y in zip(inputs.split(MICRO_BATCH), targets.split(MICRO_BATCH), strict=True):
            output = alone(x.detach().requires_grad_(rank > 0))
            nn.functional.mse_loss(output, y).backward()

    engines: dict[str, Callable[[], Any]] = {
        "model": model,
        "torch": lambda: schedule.step(inputs) if rank == 0 else schedule.step(target=targets, losses=[]),
        "pipeplan": lambda: pipeline.compute(inputs, targets, update=False),
    }
    for run in engines.values():  # torch's engine exchanges shapes ahead of its first step
        run()
    rows: dict[str, list[Seen]] = {name: [] for name in engines}
    for _, name in product(range(WARMUP + ROUNDS), engines):
        dist.barrier()
        start, busy = time.monotonic_ns(), time.thread_time_ns()
        engines[name]()
        rows[name].append((time.thread_time_ns() - busy, start, time.monotonic_ns()))
    alone_rows: dict[str, list[int]] = {name: [] for name in engines}
    with no_messages():  # last of all, as rounds after such a round wait longer
        for _, name in product(range(WARMUP + ROUNDS), engines):
            busy = time.thread_time_ns()
            engines[name]()
            alone_rows[name].append(time.thread_time_ns() - busy)
    everyone: list[tuple[dict[str, list[Seen]], dict[str, list[int]]]] = [({}, {})] * WORLD
    dist.all_gather_object(everyone, (rows, alone_rows))
    return {
        name: summary([(seen[name][WARMUP:], busy[name][WARMUP:]) for seen, busy in everyone], count)
        for name in engines
    }


Seen = tuple[int, int, int]
"""Nanoseconds of a round with messages: processor time, start, end."""


class Done:
    """A message that has arrived."""

    def wait(self) -> bool:
        """Return at once."""
        return True


@contextmanager
def no_messages() -> Iterator[None]:
    """Context in which sends and receives do nothing, so that the computed numbers are arbitrary."""
    group = dist.ProcessGroup
    real = {name: vars(group)[name] for name in ("send", "recv")}
    group.send = group.recv = lambda *_: Done()
    try:
        yield
    finally:
        for name, method in real.items():
            setattr(group, name, method)


def summary(ranks: list[tuple[list[Seen], list[int]]], count: int) -> tuple[float, float, float]:
    """Microseconds per micro-batch over all ranks and rounds, with messages and without."""
    alone = max(median(busy) for _, busy in ranks)
    busy = max(median(seen[0] for seen in own) for own, _ in ranks)
    rounds = zip(*(own for own, _ in ranks), strict=True)
    wall = median(max(seen[2] for seen in each) - min(seen[1] for seen in each) for each in rounds)
    return alone / 1e3 / count, busy / 1e3 / count, wall / 1e3 / count


def plan_of(count: int) -> Plan:
    """Plan of two stages of three layers."""
    return two_stages(tiny(), FAMILIES["1f1b-sno"].write((1,) * WORLD, count), MICRO_BATCH)


def two_stages(workload: Workload, schedule: Schedule, micro_batch: int, slices: tuple[int, ...] = ()) -> Plan:
    """Plan of two stages of half of the layers, one rank each, with made-up times."""
    names = tuple(name for name, _ in workload.module.named_children())
    described = describe("tiny", workload.module, names, held_by(workload.module, names))
    half = len(names) // WORLD
    return Plan(
        model="tiny",
        fingerprint=described.fingerprint,
        cluster="here",
        device_kinds=("cpu-worker",) * WORLD,
        micro_batch=micro_batch,
        micro_batches=schedule.micro_batches,
        optimizer="sgd",
        stages=tuple(
            PlanStage(names[half * s :][: half if s + 1 < WORLD else None], (s,), 1, 1, WORLD - s, MemoryParts())
            for s in range(WORLD)
        ),
        schedule=schedule,
        slices=slices,
        ranks=tuple(range(WORLD)),
        step_time=1,
        bound=1,
        pipeline=Priced(
            stages=(Stage(1, 1),) * WORLD,
            placement=tuple((rank,) for rank in range(WORLD)),
            transfers=((Transfer(),),),
            returns=((Transfer(),),),
            overlap=Overlap.COPY,
            runtime=(0,) * WORLD,
            limits=(UNLIMITED,) * WORLD,
        ),
    )
