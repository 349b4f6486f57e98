"""`StageWork`: computations of one stage on this rank, and what is kept of each micro-batch until its backward.

::

               x ─▶ arrival ─▶ layers ─▶ outputs ─▶ next stage      kept: where the graph begins and ends; not what went
    gradients ◀─────────────  graph  ◀─ gradients                   in or out, unless the layers need it for backward
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipeplan.core.errors import PlanError
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.profile.passes import autocast
from pipeplan.frontend.split_backward.attach import attach
from pipeplan.frontend.split_backward.queue import WeightQueue, Work, run_delayed
from pipeplan_executor.sharding.private import run_backward
from pipeplan_executor.stages.precision import LossScale
from pipeplan_executor.stages.shapes import Tensors
from pipeplan_executor.stages.stage_module import StageModule

Loss = Callable[[Tensors, Batch], Tensor]


@dataclass(frozen=True)
class Boundary:
    """What enters and leaves a stage, for one micro-batch, on the meta device.

    ``requires_grad`` of each tensor tells whether its gradient travels back.
    """

    inputs: Tensors
    outputs: Tensors


@dataclass(slots=True)
class _Kept:
    """Of one micro-batch: the ends of its graph, and the gradients that arrive where it begins."""

    roots: tuple[GradientEdge, ...]
    arrived: list[Tensor | None] = field(default_factory=list)


class _Beginning(torch.autograd.Function):
    """Where a stage's graph begins: the gradients that come back to here are put down, the tensors are not kept.

    ``anchor`` is there to ask for gradients; it gets none.
    """

    @staticmethod
    def forward(ctx: Any, arrived: list[Tensor | None], anchor: Tensor, *tensors: Tensor) -> Tensors:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.arrived = arrived
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.arrived[:] = gradients
        return (None, None, *(None for _ in gradients))


class StageWork:
    """The layers of a stage, forward and backward, micro-batch by micro-batch.

    Parameters
    ----------
    module : StageModule
    boundary : Boundary
    loss : callable, optional
        On the last stage: ``loss(outputs, targets)``, the mean over a micro-batch.
    split : set of int
        The micro-batches for which I and W follow instead of B.
    number : int
        Of the stage, for what is said when something is wrong.
    precision : str, optional
        Of forward and loss: see `pipeplan_executor.stages.precision`.
    scale : LossScale, optional
        Scales the gradients.
    """

    def __init__(
        self,
        module: StageModule,
        boundary: Boundary,
        loss: Loss | None = None,
        split: Set[int] = frozenset(),
        number: int = 0,
        device: torch.device | str = "cpu",
        precision: str | None = None,
        scale: LossScale | None = None,
    ) -> None:
        self._module, self._boundary, self._loss, self._split, self._number = module, boundary, loss, split, number
        self._wanted = [place for place, tensor in enumerate(boundary.inputs) if tensor.requires_grad]
        self._precision, self._scale = precision, scale
        self._anchor = torch.empty(0, device=device, requires_grad=True)
        self._queue = WeightQueue()
        if split:
            attach(self._queue, [module])
        self._kept: dict[int, _Kept] = {}
        self._waiting: dict[int, Sequence[Work]] = {}
        self.weights: Sequence[float] = ()
        """What the loss of each micro-batch counts in that of the step."""
        self.losses: dict[int, Tensor] = {}

    def clear(self) -> None:
        """Forget an earlier step, be it broken off."""
        self._kept, self._waiting, self.losses = {}, {}, {}
        self._queue.clear()

    def forward(self, number: int, inputs: Tensors, targets: Batch | None) -> Tensors:
        """F: what the next stage reads, contiguous and apart from the graph; nothing from the last stage."""
        kept = _Kept(())
        with self._queue.opened(number in self._split), autocast(self._precision, self._anchor.device):
            outputs = self._module(*self._begun(kept, inputs))
            if self._loss is not None:
                assert targets is not None
                loss = self._loss(outputs, targets)
                self.losses[number] = loss.detach()
                outputs = (loss,)
        kept.roots = tuple(get_gradient_edge(output) for output in outputs if output.requires_grad)
        self._kept[number] = kept
        return () if self._loss is not None else self._sendable(outputs)

    def infer(self, number: int, inputs: Tensors, targets: Batch | None) -> Tensors:
        """The same without a graph; the last stage returns what its layers return, and computes the loss of targets."""
        with torch.no_grad(), autocast(self._precision, self._anchor.device):
            outputs = self._module(*inputs)
            if self._loss is None:
                return self._sendable(outputs)
            if targets is not None:
                self.losses[number] = self._loss(outputs, targets)
            return tuple(outputs)

    def backward(self, number: int, gradients: Tensors) -> Tensors:
        """B: add to the parameters' gradients; those of the inputs that want one.

        ``gradients`` belong to the outputs that want one, in order; the last stage begins with its loss.
        """
        kept = self._kept.pop(number)
        if self._loss is not None and kept.roots:
            gradients = (self._first_gradient(number),)
        if kept.roots:
            with self._module.backward():
                run_backward(kept.roots, gradients)
        arrived = kept.arrived or [None] * len(self._wanted)
        return tuple(self._contiguous(place, found) for place, found in zip(self._wanted, arrived, strict=True))

    def input_gradient(self, number: int, gradients: Tensors) -> Tensors:
        """I: B, but that weight gradients wait which can (see `pipeplan.frontend.split_backward`)."""
        with self._queue.opened():
            found = self.backward(number, gradients)
        self._waiting[number] = self._queue.take()
        return found

    def weight_gradient(self, number: int) -> None:
        """W: add to the parameters' gradients what I left."""
        with self._module.backward():
            run_delayed(self._waiting.pop(number))

    def _first_gradient(self, number: int) -> Tensor:
        """That of the step's loss by the micro-batch's."""
        gradient = torch.full_like(self.losses[number], self.weights[number])
        return gradient if self._scale is None else self._scale.scaled(gradient)

    def _begun(self, kept: _Kept, inputs: Tensors) -> Sequence[Tensor]:
        """The inputs, with the beginning of a graph behind those that want a gradient."""
        if not self._wanted:
            return inputs
        begun = list(inputs)
        for place, tensor in zip(
            self._wanted, _Beginning.apply(kept.arrived, self._anchor, *(inputs[i] for i in self._wanted)), strict=True
        ):
            begun[place] = tensor
        return begun

    def _sendable(self, outputs: Tensors) -> Tensors:
        expected = self._boundary.outputs
        graph = torch.is_grad_enabled()
        if len(outputs) != len(expected) or any(
            found.shape != wanted.shape
            or found.dtype != wanted.dtype
            or (graph and found.requires_grad != wanted.requires_grad)
            for found, wanted in zip(outputs, expected, strict=False)
        ):
            raise PlanError(
                f"stage {self._number} made {_words(outputs)}, where {_words(expected)} was announced; the next stage "
                "waits for the latter: shapes must follow from the shapes of the batch alone"
            )
        return tuple(output.detach().contiguous() for output in outputs)

    def _contiguous(self, place: int, gradient: Tensor | None) -> Tensor:
        if gradient is not None:
            return gradient.contiguous()
        return torch.zeros_like(self._boundary.inputs[place], device=self._anchor.device, requires_grad=False)


def _words(tensors: Tensors) -> str:
    each = (
        f"{tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')}" + " with gradient" * t.requires_grad
        for t in tensors
    )
    return ", ".join(each)
