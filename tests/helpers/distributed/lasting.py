"""A run long enough to lose ranks in, and a killer of them, importable by name in other processes."""

import multiprocessing
import os
import random
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from helpers.distributed.models import layers_of, tiny_mlp
from helpers.plans import plan_for
from pipeplan.core.plan import Plan
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.checkpoint.folder import whole
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline

STEPS = 30
PAUSE = 0.05
"""Least seconds of a step."""


def unhurried() -> Workload:
    """The small perceptron, with slow batches."""
    workload = tiny_mlp()

    def draw(samples: int, generator: Any) -> tuple[Any, Any]:
        time.sleep(PAUSE)
        return workload.draw(samples, generator)

    return replace(workload, draw=draw)


def lasting_plan(ranks: int, staleness: int = 0, replicas: int = 1) -> Plan:
    """A plan of so many stages of equal replicas, with Adam, and with gradients that are late by so many batches."""
    workload = tiny_mlp()
    names = layers_of(workload)
    cuts = [round(i * len(names) / ranks) for i in range(ranks + 1)]
    plan = plan_for(workload.module, names, cuts, FAMILIES["gpipe"].write((replicas,) * ranks, 4), 2, "adam")
    return replace(plan, staleness=staleness)


def undisturbed_run(folder: str, staleness: int = 0) -> str:
    """Run all steps on these ranks, and return the path of their checkpoint."""
    pipeline = Pipeline(lasting_plan(dist.get_world_size(), staleness), tiny_mlp)
    for number in range(STEPS):
        pipeline.step(*draw(pipeline.workload, pipeline.plan.batch, 0, step=number))
    pipeline.save(folder)
    return folder


class Killer:
    """Thread that sends signals to ranks during a run in this process.

    Parameters
    ----------
    signals : list
        One per attempt of the run, each at a random moment after the attempt has saved a new checkpoint, or
        (``at_once``) from the start of its processes on.
    folder : Path
        Folder of the checkpoints.
    """

    def __init__(self, signals: list[signal.Signals], folder: Path, seed: int, at_once: bool = False) -> None:
        self._signals, self._folder, self._at_once = signals, folder, at_once
        self._random = random.Random(seed)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent: list[signal.Signals] = []
        self.sent_at = 0.0

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        seen: set[int] = set()
        for number in self._signals:
            start = time.time()
            while not (ranks := [c for c in multiprocessing.active_children() if c.pid not in seen]) or not (
                self._at_once or any(path.stat().st_mtime > start for path in whole(self._folder))
            ):
                if self._done.wait(0.05):
                    return
            if self._done.wait(self._random.uniform(0, 8 if self._at_once else STEPS * PAUSE / 3)):
                return
            victim = self._random.choice(ranks)
            seen.update(child.pid for child in multiprocessing.active_children() if child.pid)
            with suppress(ProcessLookupError):
                os.kill(victim.pid or 0, number)
                self.sent.append(number)
                self.sent_at = time.monotonic()
