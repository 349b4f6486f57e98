"""Live bytes of tensors while the layers of a sharded stage compute, as one of its replicas has them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import sleep
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.distributed.mesh_workers import with_strategies
from helpers.distributed.models import blank_model
from helpers.plans import plan_for
from pipeplan.core.operators import SAMPLE
from pipeplan.core.shared_weights import merge_overlapping
from pipeplan.core.strategies import WHOLE, AxisStrategy, LayerStrategies, Signature
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.sharding.mesh import moves
from pipeplan_executor.stages import source
from pipeplan_executor.stages.fully_sharded import FullySharded
from pipeplan_executor.train.pipeline import Pipeline

WIDE = 200
"""Features of each of `wide_maps`."""
Layers: TypeAlias = Sequence[tuple[int, ...]]
"""Bytes of each layer's weight, or 0, bytes that only exist while it computes, and those of a frozen weight, if any."""


class LiveBytes(TorchDispatchMode):
    """The most bytes of all tensors together since each call of `begin`, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, int] = defaultdict(int)
        self._seen: dict[int, StorageWeakRef] = {}
        self._name = ""

    def begin(self, name: str) -> None:
        """Count for ``name`` from now on."""
        self._name = name
        self._count()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator, and count."""
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, result)):
            if isinstance(each, Tensor):
                storage = getattr(each, "_local_tensor", each).untyped_storage()
                if storage._cdata not in self._seen or self._seen[storage._cdata].expired():
                    self._seen[storage._cdata] = StorageWeakRef(storage)
        self._count()
        return result

    def _count(self) -> None:
        self._seen = {key: each for key, each in self._seen.items() if not each.expired()}
        storages = (torch.UntypedStorage._new_with_weak_ptr(each.cdata) for each in self._seen.values())
        live = sum(storage.nbytes() for storage in storages if storage is not None)
        self.peaks[self._name] = max(self.peaks[self._name], live)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, begin: Callable[[str], None], space: int, tensor: Tensor, *weights: Tensor) -> Tensor:
        ctx.begin, ctx.space = begin, space
        ctx.save_for_backward(*weights)
        begin("forward")
        torch.empty(space, dtype=torch.uint8)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, *tuple[Tensor | None, ...]]:
        own = ctx.saved_tensors
        ctx.begin("backward")
        wanted = ctx.needs_input_grad[3:]
        gradients = [torch.zeros_like(each) if needs else None for each, needs in zip(own, wanted, strict=True)]
        torch.empty(ctx.space, dtype=torch.uint8)
        return None, None, gradient.clone(), *gradients


class _Layer(nn.Module):
    def __init__(self, begin: Callable[[str], None], space: int, weights: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self._begin, self._space, self.weights = begin, space, nn.ParameterList(weights)

    def forward(self, tensor: Tensor) -> Tensor:
        found: Tensor = _Pass.apply(self._begin, self._space, tensor, *self.weights)
        return found


def beside_what_stays(level: int, layers: Layers, ties: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Bytes of this rank in each layer's forward and backward beside what stays, in the first micro-batch of a step.

    Of what stays, level 2 has not gathered later layers as a forward computes.

    ``ties``: layers with the weight of the first of them; the others have 0 bytes.
    """
    live, group = LiveBytes(), dist.group.WORLD
    assert group is not None
    weights = [[nn.Parameter(torch.zeros(size // 4, 1))] if size else [] for size, *_ in layers]
    for first, *others in ties:
        for i in others:
            weights[i] = weights[first]
    for own, (_, _, *frozen) in zip(weights, layers, strict=True):
        own += [nn.Parameter(torch.zeros(size // 4, 1), requires_grad=False) for size in frozen if size]
    every = [
        _Layer(lambda name, i=i: live.begin(f"{name} {i}"), space, weights[i])
        for i, (_, space, *_) in enumerate(layers)
    ]
    sharded = FullySharded(level, group, torch.device("cpu"))
    for unit in merge_overlapping([*ties, *([i] for i in range(len(layers)))]):
        sharded.shard([every[i] for i in unit])
    stage = nn.Sequential(*every)
    sharded.finish(stage)
    with live, sharded.passing():
        for _ in range(2):
            live.begin("end")  # of a step, of which gradients stay
            live.peaks.clear()
            sharded.free(stage)
            stage(torch.zeros(1, requires_grad=True)).sum().backward()
        live.begin("rest")
        names = [(f"forward {i}", f"backward {i}") for i in range(len(layers))]
        return [(live.peaks[a] - live.peaks["rest"], live.peaks[b] - live.peaks["rest"]) for a, b in names]


def of_cases(cases: Sequence[tuple[int, Layers, Sequence[tuple[int, ...]]]]) -> list[list[tuple[int, int]]]:
    """`beside_what_stays` of each case."""
    return [beside_what_stays(*case) for case in cases]


def wide_maps() -> Workload:
    """Four linear maps of `WIDE` features."""
    layers = [nn.Linear(WIDE, WIDE, bias=False) for _ in range(4)]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, targets = torch.randn(2, samples, WIDE, generator=generator)
        return inputs, targets

    return Workload(nn.Sequential(*layers), draw, nn.functional.mse_loss)


def _dropped(wait: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Wait also until the thread that sent a tensor has dropped it: autograd copies gradients that others hold."""
    made = wait(tensor)
    sleep(0.002)
    return made


def on_a_mesh() -> dict[int, int]:
    """At levels 2 and 3 the most bytes in a backward beside what stays, on two replicas of teams of two.

    Teams gather each weight for its operator, which they keep in halves, and multiply a sample on each device.
    """
    module, names, held = blank_model(wide_maps)
    whole, samples = (WHOLE,), (0,)
    strategies = {
        name: LayerStrategies(
            {"linear": Signature((AxisStrategy(SAMPLE, True),), whole if name == names[-1] else samples)},
            input=whole if name == names[0] else samples,
            output=whole if name == names[-1] else samples,
        )
        for name in names
    }
    found = {}
    plan = plan_for(module, names, (0, len(names)), FAMILIES["gpipe"].write((2,), 2), held=held)
    for level in (2, 3):
        planned = replace(with_strategies(plan, tuple(strategies.items()), (2,)), zero=level)
        pipeline = Pipeline(planned, wide_maps, evaluates=False)
        stage, (fully,) = pipeline.modules[0], pipeline._fully.values()
        inputs, _ = source.draw(pipeline.workload, plan.micro_batch, 0)
        peaks = []
        with (live := LiveBytes()), fully.passing(), patch.object(moves, "_wait", partial(_dropped, moves._wait)):
            for _ in range(4):
                live.begin("end")  # of a step, of which gradients stay
                live.peaks.clear()
                fully.free(stage)
                (out,) = stage(inputs)
                live.begin("backward")
                out.sum().backward()
                live.begin("rest")
                peaks.append(live.peaks["backward"] - live.peaks["rest"])
        found[level] = min(peaks[1:])
    return found
