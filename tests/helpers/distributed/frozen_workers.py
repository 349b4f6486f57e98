"""Models with frozen weights, and their training on several ranks beside plain torch."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from helpers.distributed import checkpointing
from helpers.distributed.checkpointing import Layout, moved
from helpers.distributed.training_workers import Case, compare, decayed, sgd
from pipeplan.frontend.workload import Workload

WORDS, WIDTH = 30, 16
USERS = {"optimizer": decayed, "clip": 0.1}
"""Weight decay and clipping: frozen weights have neither."""


class Adapted(nn.Module):
    """A frozen matrix with a trained product of two small ones beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 3, bias=False), nn.Linear(3, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return torch.tanh(self.base(x) + self.up(self.down(x)))


def _draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return tuple(torch.randint(WORDS, (samples, 5), generator=generator) for _ in range(2))  # type: ignore[return-value]


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _model(tied: bool) -> Workload:
    """Three frozen layers above all that is trained, adapters, a frozen layer between, and a frozen head."""
    layers = OrderedDict[str, nn.Module](
        embedding=nn.Embedding(WORDS, WIDTH).requires_grad_(False),
        encoder=nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        tanh=nn.Tanh(),
        first=Adapted(),
        between=nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        second=Adapted(),
        head=nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False),
    )
    if tied:
        layers["head"].weight = layers["embedding"].weight
    return Workload(nn.Sequential(layers), _draw, _loss)


def adapters() -> Workload:
    """A frozen encoder and head, and trained adapters."""
    return _model(tied=False)


def tied_adapters() -> Workload:
    """The same with a head that shares the embedding's frozen matrix."""
    return _model(tied=True)


CASES = {
    2: {
        "a stage without backward": Case(adapters, (1, 1), USERS, first=3),
        "a stage without backward, split": Case(adapters, (1, 1), {"optimizer": sgd}, first=3, split=True),
        "tied over stages, recomputed": Case(tied_adapters, (1, 1), USERS, first=3, recompute=True),
        "ZeRO-1 in buckets": Case(adapters, (2,), USERS, zero=1, accumulated=(0,), bucket=1, gathered=2),
        "ZeRO-2": Case(tied_adapters, (2,), USERS, zero=2, accumulated=(1,)),
        "ZeRO-3": Case(tied_adapters, (2,), USERS, zero=3, recompute=True),
    },
    3: {
        "a last stage that trains nothing": Case(adapters, (1, 1, 1), USERS, first=5),
        "replicas above all that is trained": Case(tied_adapters, (2, 1), USERS, first=2),
        "ZeRO-3, replicas above all that is trained": Case(adapters, (2, 1), USERS, zero=3, first=3),
        "ZeRO-3, replicas below": Case(adapters, (1, 2), USERS, zero=3, first=3, recompute=True),
        "ZeRO-2, replicas below": Case(adapters, (1, 2), {"optimizer": sgd}, zero=2, first=4),
    },
    4: {
        "a mesh, ZeRO-2": Case(tied_adapters, (2,), USERS, zero=2, mesh=(2,), accumulated=(1,)),
        "a mesh, ZeRO-3": Case(adapters, (2,), USERS, zero=3, mesh=(2,), recompute=True),
    },
}
"""Cases with frozen weights, by number of ranks."""
LOW = {
    "bf16, ZeRO-3": Case(tied_adapters, (2,), {"optimizer": sgd, "precision": "bf16"}, zero=3),
    "fp16, two stages": Case(adapters, (1, 1), {"optimizer": sgd, "clip": 1.0, "precision": "fp16"}, first=3),
}
"""Such cases in mixed precision, on two ranks."""
LAYOUTS = {
    2: (Layout((1, 1)), Layout((2,), zero=3), Layout((2,), zero=1)),
    3: (Layout((1, 1, 1)), Layout((3,), zero=3), Layout((2, 1), zero=1), Layout((3,), zero=2), Layout((1, 2), zero=3)),
}
"""Between which runs move, by number of ranks."""


def trained() -> dict[str, Any]:
    """Results of all cases of this number of ranks."""
    found = {name: compare(case, torch.float64) for name, case in CASES[dist.get_world_size()].items()}
    low = LOW if dist.get_world_size() == 2 else {}
    return found | {name: compare(case, torch.float32) for name, case in low.items()}


def moved_on(folder: str) -> dict[str, float]:
    """Largest difference between a run that changes its layout and one that does not."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    checkpointing.MODELS["adapters"] = adapters
    return moved(folder, "adapters", "adam", in_a_ring=True, among=LAYOUTS[dist.get_world_size()])
