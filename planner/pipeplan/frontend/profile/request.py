"""`Request`: settings of a measurement, checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pipeplan.core.choices import known
from pipeplan.core.errors import InputError
from pipeplan.core.figures import MOST_SAMPLES, whole
from pipeplan.core.job import OPTIMIZER_STATE
from pipeplan.core.options import MOST_WORKERS
from pipeplan.frontend.capture.front_ends import FrontEnd
from pipeplan.frontend.profile.passes import Loss, autocast


@dataclass(frozen=True)
class Request:
    """Settings of a measurement; the fields are the arguments of `pipeplan.profile`."""

    micro_batches: tuple[int, ...]
    repeats: int
    warmup: int
    optimizer: str
    device: str
    device_name: str | None
    threads: int
    crowd: int
    name: str | None
    loss: Loss | None
    weight: Callable[[Any], float] | None
    group: tuple[str, ...]
    front_end: FrontEnd = "auto"
    precision: str | None = None
    slices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.micro_batches:
            raise InputError("micro_batches must be sizes of at least one sample, and none is given")
        for size in self.micro_batches:
            whole(size, "micro_batches (sizes of at least one sample)", 1, MOST_SAMPLES)
        whole(self.threads, "threads", 1, MOST_WORKERS)
        whole(self.crowd, "crowd (workers that are busy at once)", 0, MOST_WORKERS)
        whole(self.repeats, "repeats", 1)
        whole(self.warmup, "warm-ups")
        known(self.optimizer, "optimizer", OPTIMIZER_STATE)
        autocast(self.precision, torch.device("cpu"))
        known(self.device, "device", ("cpu", "cuda", "meta"))
        if self.device == "meta" and len(set(self.micro_batches)) > 1:
            raise InputError(
                f"on meta nothing is measured, and sizes are those of one sample; give one of {self.micro_batches}"
            )
        if self.device == "meta" and self.slices:
            raise InputError("on meta nothing is measured, slices neither; measure them on cpu or cuda")
        if self.crowd < 1 or (self.crowd > 1 and self.device != "cpu"):
            raise InputError(f"crowd counts the workers of a CPU, this one included; {self.crowd} makes no sense here")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("no CUDA device is available; measure on cpu, or use a catalogued device's estimate")
