"""Workers for the tests of sums front layers first."""

import warnings
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from helpers.distributed.everywhere import greatest
from helpers.distributed.models import tiny_decoder, tiny_mlp, tiny_tied
from helpers.distributed.training_models import dropped, forking, idling
from helpers.distributed.training_workers import (
    SEED,
    USERS,
    Case,
    Found,
    compare,
    decayed,
    falling,
    planned,
    sgd,
)
from helpers.quick import thinned
from pipeplan.core.errors import PipeplanError
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline

FREE = {"optimizer": decayed, "scheduler": falling}
"""AdamW in two groups with a falling learning rate, not clipped."""


def cases(world: int) -> dict[str, Case]:
    """Cases for this number of ranks."""
    alike = (world,)
    every = {
        "scheduled, accumulated": Case(tiny_decoder, alike, FREE, accumulated=(1, 4), front=3, steps=10),
        "recomputed": Case(dropped, alike, {"optimizer": sgd}, recompute=True, front=3, steps=10),
        "unequal turns": Case(dropped, alike, {"optimizer": sgd}, micro_batches=2 * world - 1, front=2, steps=10),
        "idle replicas": Case(tiny_decoder, alike, FREE, micro_batches=1, front=2, steps=10),
        "clipped": Case(tiny_decoder, alike, USERS, front=3, steps=10),
        "split": Case(tiny_decoder, alike, FREE, split=True, front=2, steps=10),
        "tied on one stage": Case(tiny_tied, alike, {"optimizer": sgd}, front=2, steps=10),
        "unused": Case(idling, alike, {"optimizer": sgd}, front=2, steps=10),
        "captured": Case(forking, alike, {"optimizer": sgd}, front=2, steps=10),
    }
    if world == 4:
        every |= {
            "two stages": Case(tiny_decoder, (2, 2), FREE, front=3, steps=10),
            "two stages, recomputed": Case(dropped, (2, 2), {"optimizer": sgd}, recompute=True, front=3, steps=10),
            "one stage alone": Case(tiny_decoder, (3, 1), {"optimizer": sgd}, micro_batches=6, front=3, steps=10),
        }
    return thinned(every, 3)


def everything() -> Found:
    """Results of all cases of this number of ranks."""
    return {name: compare(case, torch.float64) for name, case in cases(dist.get_world_size()).items()}


def mixed() -> Found:
    """Results in mixed precision: in fp16 the loss scale needs all sums."""
    bf16 = Case(tiny_tied, (2,), {"optimizer": sgd, "precision": "bf16"}, front=2)
    return {name: compare(_in(bf16, name), torch.float32) for name in ("bf16", "fp16")}


def _in(case: Case, precision: str) -> Case:
    return replace(case, options={**case.options, "precision": precision})


def order_of_a_step() -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Ranges that left on this rank in the second step, layers whose update waits behind it, and behind a look."""
    left: list[tuple[int, int]] = []
    leave = Flat.leave_between

    def leaving(part: Flat, start: int, end: int, *rest: Any) -> Any:
        left.append((start, end))
        return leave(part, start, end, *rest)

    case = Case(tiny_mlp, (2,), FREE, micro_batches=3, front=3)
    pipeline = Pipeline(planned(case), tiny_mlp, seed=SEED, **FREE)
    batch = draw(pipeline.workload, pipeline.plan.batch, SEED)
    pipeline.compute(*batch)
    with patch.object(Flat, "leave_between", leaving):
        pipeline.compute(*batch)
    waiting = sorted(pipeline.modules[0].arriving)
    rate = pipeline.updates.optimizers[0].optimizer.param_groups[0]["lr"]
    next(pipeline.named_parameters())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (left, waiting, sorted(pipeline.modules[0].arriving), rate))
    return everyone


def resumed(folder: str) -> dict[str, float]:
    """Differences of weights to an undisturbed run: with looks in between, saved, and resumed."""
    case = Case(tiny_decoder, (2,), FREE, front=3)

    def run(steps: range, *, load: bool = False, look: bool = False, save: bool = False) -> Pipeline:
        pipeline = Pipeline(planned(case), case.build, seed=SEED, dtype=torch.float64, **case.options)
        if load:
            assert pipeline.load(folder).step == steps.start
        for number in steps:
            batch = draw(pipeline.workload, pipeline.plan.batch, SEED, torch.float64, number)
            pipeline.compute(*batch)
            if look:
                pipeline.evaluate(*batch), pipeline.state_dict()
            if save and number == 2:
                pipeline.save(folder)
        return pipeline

    whole = run(range(6)).modules[0]
    found = {"looked at": run(range(6), look=True), "saved": run(range(6), save=True)}
    found["resumed"] = run(range(3, 6), load=True)
    return {
        name: greatest(max(float((a - b).abs().max()) for a, b in zip(p.parameters(), whole.parameters(), strict=True)))
        for name, p in found.items()
    }


class Counting(torch.optim.SGD):
    """An optimiser that says it works number by number, and counts its steps in its groups."""

    elementwise = True

    def step(self, closure: Any = None) -> Any:
        """Update and count."""
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        return super().step(closure)


def refused() -> dict[str, str]:
    """What is said to optimisers that cannot have sums front layers first, and about clipping."""

    case = Case(tiny_mlp, (2,), front=2)

    def said(**options: Any) -> str:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                pipeline = Pipeline(planned(case), case.build, seed=SEED, **options)
                batch = draw(pipeline.workload, pipeline.plan.batch, SEED)
                for _ in range(3):
                    pipeline.step(*batch)
            except PipeplanError as error:
                return str(error)
        return "\n".join(str(each.message) for each in seen)

    return {
        "LBFGS": said(optimizer=lambda named: torch.optim.LBFGS([p for _, p in named])),
        "counting": said(optimizer=lambda named: Counting(named, lr=0.1)),
        "clipped": said(clip=1.0),
    }
