"""A single stage of any layers, without a plan."""

from collections.abc import Callable, Sequence, Set

import torch
from torch import Tensor, nn

from pipeplan.frontend.capture.flow import Tensors, trace
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import on_meta
from pipeplan.frontend.parameters import named_tensors
from pipeplan.frontend.split_backward.queue import JOINED
from pipeplan_executor.stages.stage import Boundary, StageWork
from pipeplan_executor.stages.stage_module import StageModule, treatment_of


def stage_of(
    layers: dict[str, nn.Module],
    inputs: Tensors,
    *,
    recompute: Sequence[str] = (),
    split: Set[int] = frozenset(),
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    number: int = 0,
) -> tuple[StageWork, StageModule]:
    """Build an inner stage; copies and restored tensors are determined as in a plan.

    ``inputs`` need a gradient if their ``requires_grad`` is set.
    """
    names = tuple(layers)
    ahead = _Given(inputs)
    sequence = LayerSequence(
        ("ahead", *names),
        (ahead, *map(on_meta, layers.values())),
        ({}, *({name: name for name, _ in named_tensors(layer)} for layer in layers.values())),
        ("",) * (1 + len(names)),
        lambda outputs: outputs,
    )
    flow = trace(sequence, torch.zeros(1))
    for layer, traced in zip(layers.values(), sequence.layers[1:], strict=True):
        if hasattr(traced, JOINED):
            setattr(layer, JOINED, True)
    treatments = {
        name: treatment_of(flow, number, name in recompute, number == 1) for number, name in enumerate(names, start=1)
    }
    held = [{local: f"{name}.{local}" for local, _ in named_tensors(layer)} for name, layer in layers.items()]
    module = StageModule(layers, treatments, held)
    boundary = Boundary(flow.tensors[1], flow.tensors[-1])
    work = StageWork(
        module, boundary, None if loss is None else lambda found, targets: loss(*found, targets), split, number
    )
    work.weights = (1.0,) * 100
    return work, module


class _Given(nn.Module):
    """Module that returns the tensors of the stage ahead."""

    def __init__(self, inputs: Tensors) -> None:
        super().__init__()
        self.inputs = tuple((tensor.detach().to("meta"), tensor.requires_grad) for tensor in inputs)

    def forward(self, _: Tensor) -> Tensors:
        return tuple(t.clone().requires_grad_() * 1 if grad else t.clone() for t, grad in self.inputs)
