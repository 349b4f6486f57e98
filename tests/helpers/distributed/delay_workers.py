"""Workers for the tests of gradients that are one batch late: a pipeline, and one process with delayed updates."""

import ctypes
import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from helpers.distributed.everywhere import greatest
from helpers.distributed.models import tiny_decoder, tiny_mlp, tiny_resnet, tiny_tied
from helpers.distributed.training_models import dropped, padded, steep
from helpers.distributed.training_workers import (
    SEED,
    USERS,
    Case,
    Found,
    Plain,
    Seen,
    apart,
    decayed,
    falling,
    layers_in,
    planned,
    sgd,
)
from helpers.quick import thinned
from pipeplan.core.plan import Plan
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.train.verify import verify


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
            "padding": Case(padded, line, {"optimizer": sgd}),
            "batch norm": Case(tiny_resnet, line, {"optimizer": sgd}, micro_batches=2),
        }
    return thinned(every, 4)


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
    return {name: compare(case, torch.float64) for name, case in cases(dist.get_world_size()).items()}


def mixed() -> Found:
    """Results of the cases in mixed precision."""
    return {name: compare(case, torch.float32) for name, case in LOW.items()}


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


def resumed(folder: str) -> dict[str, float]:
    """Differences of weights to an undisturbed run, after a checkpoint in the middle and what loads it."""
    case = Case(tiny_tied, (1, 1), USERS, micro_batches=2)

    def run(plan: Plan, steps: range, *, load: bool = False, save: bool = False) -> Pipeline:
        pipeline = Pipeline(plan, tiny_tied, seed=SEED, dtype=torch.float64, **USERS)
        if load:
            assert pipeline.load(folder).step == steps.start
        for number in steps:
            pipeline.step(*draw(pipeline.workload, plan.batch, SEED, torch.float64, number))
            if save and number == 2:
                pipeline.save(folder)
        pipeline.drain()
        return pipeline

    def differences(one: Pipeline, other: Pipeline) -> float:
        theirs = dict(other.named_parameters())
        return greatest(max(float((own - theirs[name]).detach().abs().max()) for name, own in one.named_parameters()))

    plan, elsewhere = delayed(case), delayed(replace(case, replicas=(2,), zero=1, bucket=2))
    undisturbed, short = run(plan, range(6)), run(plan, range(3))
    found = {"saved": differences(run(plan, range(6), save=True), undisturbed)}
    found["resumed"] = differences(run(plan, range(3, 6), load=True), undisturbed)
    found["newest"] = differences(run(replace(plan, staleness=0), range(3, 3), load=True), short)
    other = run(elsewhere, range(3, 6), load=True)
    theirs = dict(undisturbed.named_parameters())
    pairs = [(own, theirs[name]) for name, own in other.named_parameters() if name in theirs]
    found["elsewhere"] = greatest(max(float((own - each).detach().abs().max()) for own, each in pairs))
    # a checkpoint without delay: the first batch behind it runs with the saved weights
    synchronous = run(replace(plan, staleness=0), range(3))
    synchronous.save(folder + " synchronous")
    later = Pipeline(plan, tiny_tied, seed=SEED, dtype=torch.float64, **USERS)
    later.load(folder + " synchronous")
    batch = draw(later.workload, plan.batch, SEED, torch.float64, 3)
    later.step(*batch)
    found["not delayed"] = abs(later.drain() - synchronous.step(*batch))
    return found


def verified() -> list[tuple[float, str]]:
    """Verdicts of plans with delay."""
    two = Case(dropped, (1, 1), micro_batches=2), Case(tiny_tied, (2,), zero=1, micro_batches=4, bucket=2)
    verdicts = [verify(delayed(case), case.build, SEED) for case in two]
    return [(verdict.error, str(verdict)) for verdict in verdicts]


class _Heap(ctypes.Structure):
    """The counters of the C library's `mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"]
    ]
    _fields_ += [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


def live_bytes() -> int:
    """Bytes that this process has allocated of the heap, where all tensors are; not what lies there free."""
    count = ctypes.CDLL(None).mallinfo2
    count.restype = _Heap
    gc.collect()
    heap = count()
    return int(heap.uordblks + heap.hblkhd)


def long_runs(steps: int) -> list[tuple[int, int]]:
    """Live bytes of two plans after ten steps, and after so many."""
    found = []
    for _ in range(2500):  # torch keeps a record of the last 2,000 collectives
        greatest(0.0)
    for case in (
        Case(tiny_decoder, (1, 1), {"optimizer": sgd}, micro_batches=3),
        Case(tiny_mlp, (2,), {"optimizer": decayed}, zero=1, micro_batches=2, bucket=1),
    ):
        plan = delayed(case)
        pipeline = Pipeline(plan, case.build, **case.options)
        batch = draw(pipeline.workload, plan.batch, SEED)
        held = []
        for number in range(steps):
            pipeline.step(*batch)
            if number + 1 in (10, steps):
                pipeline.drain()
                held.append(live_bytes())
        found.append((held[0], held[1]))
    return found
