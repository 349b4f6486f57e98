"""What one step of delay costs in training: losses after equally many steps and after equal time, beside a flush.

Handwritten digits (of scikit-learn, where it is installed) on two replicas, and characters of the help texts of Python
on two stages, on a slow loopback device as in `benchmarks.overlapped_reduction`. Both ways of a seed begin with the
same weights and see the same batches. Losses are of data that is not trained on; lower is better.
"""

import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from benchmarks.overlapped_reduction import RANKS, slow_cluster, slowed
from torch import Tensor, nn

from pipeplan.core.plan import Plan
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.solve import solve
from pipeplan_executor import Pipeline, launch
from pipeplan_executor.zoo.decoder import decoder

SEEDS = 2
LENGTH = 64
Batches = Callable[[torch.Generator, bool], tuple[Tensor, Tensor]]
"""A random batch of a generator: of what is trained on, or (True) of the rest."""


@dataclass(frozen=True)
class Trial:
    """A model, the shape of its plans, and its training."""

    build: str
    shape: dict[str, Any]
    batch: int
    micro_batch: int
    optimizer: Callable[[Any], torch.optim.Optimizer]
    steps: int


def momentum(named: Any, rate: float = 0.05) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(named, lr=rate, momentum=0.9)


def adam(named: Any, rate: float = 1e-3) -> torch.optim.Optimizer:
    """Adam."""
    return torch.optim.Adam(named, lr=rate)


TRIALS = {
    "digits": Trial("images", {"depths": (1,), "replicas": (2,)}, 256, 128, momentum, 100),
    "characters": Trial("texts", {"depths": (2,), "replicas": (1,)}, 32, 8, adam, 80),
}
TRIALS |= {
    "digits, 0.01": replace(TRIALS["digits"], optimizer=partial(momentum, rate=0.01)),
    "characters, 3e-4": replace(TRIALS["characters"], optimizer=partial(adam, rate=3e-4)),
}
"""The same with lower learning rates."""


def images() -> Workload:
    """A perceptron for images of 8 x 8 points."""
    layers = [nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 64, generator=generator), torch.randint(10, (samples,), generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.cross_entropy)


def texts() -> Workload:
    """A small decoder of characters."""
    return decoder(blocks=4, width=128, heads=4, vocabulary=128, length=LENGTH, hidden=512)


def digits() -> Batches | None:
    """Return batches of digits; None where they are not installed."""
    found = find_spec("sklearn")
    folders = [] if found is None else found.submodule_search_locations or []
    files = [path for folder in folders if (path := Path(folder, "datasets/data/digits.csv.gz")).exists()]
    if not files:
        return None
    with gzip.open(files[0]) as file:
        rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    size, inputs, targets = TRIALS["digits"].batch, rows[:, :64] / 16, rows[:, 64].long()

    def batch(generator: torch.Generator, rest: bool) -> tuple[Tensor, Tensor]:
        chosen = torch.arange(size) if rest else torch.randint(size, len(rows), (size,), generator=generator)
        return inputs[chosen], targets[chosen]

    return batch


def characters() -> Batches:
    """Return batches of texts, of which the last tenth is not trained on."""
    from pydoc_data.topics import topics

    text = torch.tensor([min(ord(each), 127) for name in sorted(topics) for each in topics[name]])
    cut = len(text) * 9 // 10

    def batch(generator: torch.Generator, rest: bool) -> tuple[Tensor, Tensor]:
        low, high = (cut, len(text) - LENGTH - 1) if rest else (0, cut - LENGTH - 1)
        starts = torch.randint(low, high, (TRIALS["characters"].batch,), generator=generator)
        rows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    return batch


DATA: dict[str, Callable[[], Batches | None]] = {"images": digits, "texts": characters}


def main() -> None:
    """Print the table, in a namespace with a slow loopback device."""
    slowed("delayed_training", table)


def table() -> None:
    """Print losses of both ways of training."""
    cluster = slow_cluster()
    print(f"{'':16} {'':28} {'steps':>7} {'seconds':>8} {'loss':>7}  {'of each seed'}")
    for name, trial in TRIALS.items():
        if DATA[trial.build]() is None:
            print(f"{name}: not measured, as scikit-learn is not installed")
            continue
        model = profile_workload(
            f"benchmarks.delayed_training:{trial.build}",
            micro_batches=(trial.micro_batch,),
            name=trial.build,
            crowd=RANKS,
        )
        plans = [
            solve(
                model,
                cluster,
                trial.batch,
                recompute="none",
                optimizer="momentum" if trial.build == "images" else "adam",
                objective="period",
                staleness=late,
                **trial.shape,
            ).plan
            for late in (0, 1)
        ]
        rows = [launch(trained, RANKS, name, plans, seed, timeout=300, device="cpu") for seed in range(SEEDS)]
        for way in rows[0]:
            steps, seconds, losses = zip(*(row[way] for row in rows), strict=True)
            each = " ".join(f"{loss:.4f}" for loss in losses)
            print(f"{name:16} {way:28} {mean(steps):7.0f} {mean(seconds):8.1f} {mean(losses):7.4f}  {each}")


def trained(name: str, plans: list[Plan], seed: int) -> dict[str, tuple[int, float, float]]:
    """Return steps, seconds and loss of a flush, and of one step of delay after as many steps and after equal time."""
    torch.set_num_threads(1)
    flush, delayed = (Training(name, plan, seed) for plan in plans)
    count = TRIALS[name].steps
    found = {"flush": flush.after(count), "delayed, equal steps": delayed.after(count)}
    more = round(count * found["flush"][1] / found["delayed, equal steps"][1])
    more = int(flush.pipeline.shared_loss({0: float(more)})) // RANKS  # every rank has measured another time
    return {**found, "delayed, equal time": delayed.after(max(more, count))}


class Training:
    """A pipeline with its data."""

    def __init__(self, name: str, plan: Plan, seed: int) -> None:
        trial, data = TRIALS[name], DATA[TRIALS[name].build]()
        assert data is not None
        self._data = data
        self.pipeline = Pipeline(
            plan, f"benchmarks.delayed_training:{trial.build}", seed=seed, optimizer=trial.optimizer
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._seconds, self._steps = 0.0, 0

    def after(self, steps: int) -> tuple[int, float, float]:
        """Train on to so many steps; return their number, the seconds of all so far, and the loss."""
        began = time.monotonic()
        for _ in range(steps - self._steps):
            self.pipeline.compute(*self._data(self._generator, False))
        self.pipeline.drain()
        self._seconds += time.monotonic() - began
        self._steps = steps
        others = torch.Generator().manual_seed(0)
        loss = mean(self.pipeline.evaluate(*self._data(others, True)) for _ in range(4))
        return steps, self._seconds, loss


if __name__ == "__main__":
    main()
