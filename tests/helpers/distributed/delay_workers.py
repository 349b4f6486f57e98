"""Workers for the tests of gradients that are one batch late: a pipeline, and one process with delayed updates."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from helpers.distributed.models import tiny_decoder, tiny_mlp, tiny_tied
from helpers.distributed.training_models import dropped, padded, steep
from helpers.distributed.training_workers import SEED, USERS, Case, Found, Plain, Seen, apart, falling, layers_in, planned, sgd
from pipeplan.core.plan import Plan
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised

def cases(world: int) -> dict[str, Case]:
    """Cases for this number of ranks."""
    line, alike = (1,) * world, (world,)
    every = {
        "m = d": Case(tiny_decoder, line, {"optimizer": sgd}, micro_batches=world),
        "m = 2 d, clipped, scheduled": Case(tiny_decoder, line, USERS, micro_batches=2 * world, steps=6),
        "tied": Case(tiny_tied, line, USERS, micro_batches=world + 1),
        "replicas": Case(tiny_mlp, alike, {"optimizer": sgd}, micro_batches=world, bucket=1),
        "ZeRO-1, clipped": Case(tiny_tied, alike, USERS, zero=1, micro_batches=2 * world, bucket=2, gathered=3),
    }
    if world == 4:
        every |= {
            "halves": Case(tiny_decoder, (2, 2), {"optimizer": sgd}, zero=1, micro_batches=8, bucket=1, steps=6),
            "tied, replicas, ZeRO-1": Case(tiny_tied, (2, 1, 1), USERS, zero=1, micro_batches=8, bucket=2, gathered=2),
            "many in flight": Case(tiny_decoder, line, {"optimizer": sgd}, micro_batches=8, schedule="1f1b-so"),
        }
    if world == 2:
        every |= {
            "dropout, recomputed": Case(dropped, line, {"optimizer": sgd, "clip": 0.1}, recompute=True),
            "dropout, split": Case(dropped, line, {"optimizer": sgd}, split=True),
            "padding": Case(padded, line, {"optimizer": sgd}),
        }
    if world == 1:
        every = {
            "m = d": Case(tiny_decoder, line, {"optimizer": sgd}, micro_batches=1),
            "clipped, scheduled": Case(tiny_tied, line, USERS, micro_batches=2),
        }
    return every


LOW = {
    "fp16": Case(steep, (1, 1), {"optimizer": sgd, "scheduler": falling, "precision": "fp16"}, steps=8),
    "bf16": Case(tiny_decoder, (2,), {"optimizer": sgd, "clip": 0.5, "precision": "bf16"}, zero=1),
}


class Delayed(Plain):
    """The unsplit model in one process: each batch's gradient is applied behind that of the next one."""

    waiting: Sequence[torch.Tensor] | None = None
    scale = 1.0

    def _update(self, seen: Seen) -> None:
        """Keep the gradient, and apply the one before."""
        parameters = [*self.whole.parameters()]
        fresh = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self.waiting, before = fresh, self.waiting
        scale, self.scale = self.scale, self.scaler.get_scale()
        if before is None:
            self.optimizer.zero_grad()
            return
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient * (self.scaler.get_scale() / scale)
        super()._update(seen)

    def drain(self, seen: Seen) -> None:
        """Apply the last gradient."""
        self.optimizer.zero_grad()
        self._update(seen)


def delayed(case: Case) -> Plan:
    """The plan of a case, with gradients one batch late."""
    return replace(planned(case), zero=case.zero, staleness=1)


def everything() -> Found:
    """Results of all cases of this number of ranks."""
    found = {name: compare(case, torch.float64) for name, case in cases(dist.get_world_size()).items()}
    low = LOW if dist.get_world_size() == 2 else {}
    return found | {name: compare(case, torch.float32) for name, case in low.items()}


def compare(case: Case, dtype: torch.dtype) -> tuple[Seen, Seen, float]:
    """Train both, evaluating on the way, and return both records and the difference of weights."""
    workload, plan = case.build(), delayed(case)
    pipeline = Pipeline(plan, case.build, seed=SEED, dtype=dtype, **case.options)
    whole = materialised(pipeline.fitted, seed=SEED, dtype=dtype)
    plain = Delayed(whole, workload, case.options, layers_in(whole, draw(workload, 2, SEED, dtype)[0]))
    ours, theirs = Seen(), Seen()

    def batch(number: int) -> Any:
        return draw(workload, plan.batch, SEED, dtype, number)

    for number in range(case.steps):
        inputs, targets = batch(number)
        ours.losses.append(pipeline.step(inputs, targets))
        theirs.losses.append(plain.step(number, inputs.split(2), targets.split(2), theirs, True, 1.0))
        if number == case.steps // 2:  # what ends a batch early changes nothing
            pipeline.predict(inputs)
    ours.losses.append(pipeline.drain())
    plain.drain(theirs)
    ours.evaluated.append(pipeline.evaluate(*batch(0)))
    theirs.evaluated.append(plain.evaluate(*batch(0)))
    return ours, theirs, apart(pipeline, whole)
