"""`StageWork`: computations of one stage on this rank, and state of each micro-batch until its backward.

::

               x ─▶ arrival ─▶ layers ─▶ outputs ─▶ next stage      kept: the ends of the graph; inputs and outputs only
    gradients ◀─────────────  graph  ◀─ gradients                   if the layers need them for the backward
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipeplan.core.errors import PlanError
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.profile.passes import autocast
from pipeplan.frontend.split_backward.attach import attach
from pipeplan.frontend.split_backward.queue import WeightQueue, Work, run_delayed
from pipeplan_executor.sharding.private import run_backward
from pipeplan_executor.stages.precision import LossScale
from pipeplan_executor.stages.stage_module import StageModule

Loss = Callable[[Tensors, Batch], Tensor]


class Buckets(Protocol):
    """Buckets of gradients that leave while the last backward runs (`pipeplan_executor.optim.buckets`)."""

    last: int | None
    """The micro-batch of the last backward."""
    last_slice: int
    """And its slice."""

    def leaving(self) -> AbstractContextManager[None]:
        """Context for the last backward, if it is joined."""

    def run(self, works: Sequence[Work]) -> None:
        """Run the delayed weight gradients of the last backward, if it is split."""


@dataclass(frozen=True)
class Boundary:
    """Inputs and outputs of a stage for one micro-batch, on the meta device.

    The gradient of a tensor with ``requires_grad`` is sent back. ``slices``: those of each slice of a sequence.
    """

    inputs: Tensors
    outputs: Tensors
    slices: tuple["Boundary", ...] = ()

    def of(self, part: int) -> "Boundary":
        """Return those of a slice; of all if sequences stay whole."""
        return self.slices[part] if self.slices else self


@dataclass(slots=True)
class _InFlight:
    """State of one micro-batch: the output edges of its graph, and the gradients of its inputs once known."""

    roots: tuple[GradientEdge, ...]
    arrived: list[Tensor | None] = field(default_factory=list)


class _FirstNode(torch.autograd.Function):
    """First node of a stage's graph: stores the inputs' gradients, and does not keep the inputs.

    ``anchor`` requires a gradient, so that the node is recorded; it gets none.
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
    """Forward and backward of a stage's layers, per micro-batch.

    Parameters
    ----------
    module : StageModule
    boundary : Boundary
    loss : callable, optional
        On the last stage: ``loss(outputs, targets)``, the mean over a micro-batch.
    split : set of int
        The micro-batches with a split backward (I and W instead of B).
    number : int
        Number of the stage, for error messages.
    precision : str, optional
        Precision of forward and loss: see `pipeplan_executor.stages.precision`.
    scale : LossScale, optional
        Scales the gradients.
    buckets : Buckets, optional
        Gradients that are summed while the last backward runs.
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
        buckets: Buckets | None = None,
    ) -> None:
        self._module, self._boundary, self._loss, self._split, self._number = module, boundary, loss, split, number
        self._wanted = [place for place, tensor in enumerate(boundary.inputs) if tensor.requires_grad]
        self._precision, self._scale, self._buckets = precision, scale, buckets
        self._anchor = torch.empty(0, device=device, requires_grad=True)
        self._queue = WeightQueue()
        if split:
            attach(self._queue, [module])
        self._kept: dict[tuple[int, int], _InFlight] = {}
        self._waiting: dict[tuple[int, int], Sequence[Work]] = {}
        self._part = 0
        self.weights: Sequence[float] = ()
        """Weight of each micro-batch's loss in the loss of the step."""
        self.losses: dict[int, Tensor] = {}

    def at(self, micro_batch: int, part: int) -> None:
        """Begin an action of a slice of a micro-batch; sequences that stay whole have slice 0 only."""
        self._part = part
        self._module.at(micro_batch, part)

    def clear(self) -> None:
        """Discard the state of an earlier step, complete or not."""
        self._kept, self._waiting, self.losses = {}, {}, {}
        self._queue.clear()
        if self._module.sharded_layers is not None:
            self._module.sharded_layers.forget()

    def forward(self, number: int, inputs: Tensors, targets: Batch | None) -> Tensors:
        """F: return the outputs for the next stage, contiguous and detached; none from the last stage."""
        kept = _InFlight(())
        opened = self._queue.opened(number in self._split)
        with opened, autocast(self._precision, self._anchor.device), _explained(*_STRANGE):
            outputs = self._module(*self._with_first_node(kept, inputs), for_loss=self._loss is not None)
            if self._loss is not None:
                assert targets is not None
                loss = self._module.loss(self._loss, outputs, targets)
                self._count(number, loss.detach())
                outputs = (loss,)
        kept.roots = tuple(get_gradient_edge(output) for output in outputs if output.requires_grad)
        self._kept[number, self._part] = kept
        return () if self._loss is not None else self._sendable(outputs)

    def infer(self, number: int, inputs: Tensors, targets: Batch | None) -> Tensors:
        """F without a graph; the last stage returns its outputs, and computes the loss if there are targets."""
        with torch.no_grad(), autocast(self._precision, self._anchor.device):
            outputs = self._module(*inputs, for_loss=targets is not None)
            if self._loss is None:
                return self._sendable(outputs)
            if targets is not None:
                self._count(number, self._module.loss(self._loss, outputs, targets))
            return tuple(outputs)

    def _count(self, number: int, loss: Tensor) -> None:
        """Add the loss of a slice to that of its micro-batch."""
        self.losses[number] = self.losses[number] + loss if number in self.losses else loss

    def backward(self, number: int, gradients: Tensors) -> Tensors:
        """B: add to the parameters' gradients; return the gradients of the inputs that require one.

        ``gradients`` belong to the outputs that require one, in order; the last stage begins with its loss.
        """
        kept = self._kept.pop((number, self._part))
        if self._loss is not None and kept.roots:
            gradients = (self._first_gradient(number),)
        if kept.roots:
            with self._leaving(number), _explained(*_CHANGED):
                run_backward(kept.roots, gradients)
        arrived = kept.arrived or [None] * len(self._wanted)
        return tuple(self._contiguous(place, found) for place, found in zip(self._wanted, arrived, strict=True))

    def input_gradient(self, number: int, gradients: Tensors) -> Tensors:
        """I: B with delayed weight gradients where possible (see `pipeplan.frontend.split_backward`)."""
        with self._queue.opened():
            found = self.backward(number, gradients)
        self._waiting[number, self._part] = self._queue.take()
        return found

    def weight_gradient(self, number: int) -> None:
        """W: add the delayed weight gradients of I to the parameters' gradients."""
        works = self._waiting.pop((number, self._part))
        if self._is_last(number) and self._buckets is not None:
            self._buckets.run(works)
        else:
            run_delayed(works)

    def _leaving(self, number: int) -> AbstractContextManager[None]:
        """Return the context for a backward through the graph: in the last one, if joined, buckets leave."""
        if self._buckets is None or not self._is_last(number) or number in self._split:
            return nullcontext()
        return self._buckets.leaving()

    def _is_last(self, number: int) -> bool:
        """Return whether buckets leave with this backward."""
        last = self._buckets
        return last is not None and (number, self._part) == (last.last, last.last_slice)

    def _first_gradient(self, number: int) -> Tensor:
        """Return the gradient of the step's loss with respect to the micro-batch's loss."""
        gradient = torch.full_like(self.losses[number], self.weights[number])
        return gradient if self._scale is None else self._scale.scaled(gradient)

    def _with_first_node(self, kept: _InFlight, inputs: Tensors) -> Sequence[Tensor]:
        """Return the inputs, with the first node of a graph for those that require a gradient."""
        if not self._wanted:
            return inputs
        begun = list(inputs)
        for place, tensor in zip(
            self._wanted, _FirstNode.apply(kept.arrived, self._anchor, *(inputs[i] for i in self._wanted)), strict=True
        ):
            begun[place] = tensor
        return begun

    def _sendable(self, outputs: Tensors) -> Tensors:
        expected = self._boundary.of(self._part).outputs
        graph = torch.is_grad_enabled()
        if len(outputs) != len(expected) or any(
            found.shape != wanted.shape
            or found.dtype != wanted.dtype
            or (graph and found.requires_grad != wanted.requires_grad)
            for found, wanted in zip(outputs, expected, strict=False)
        ):
            raise PlanError(
                f"stage {self._number} returned {_words(outputs)}, but {_words(expected)} was traced, and the next "
                "stage expects the latter: shapes must depend only on the shapes of the batch"
            )
        return tuple(output.detach().contiguous() for output in outputs)

    def _contiguous(self, place: int, gradient: Tensor | None) -> Tensor:
        if gradient is not None:
            return gradient.contiguous()
        return torch.zeros_like(
            self._boundary.of(self._part).inputs[place], device=self._anchor.device, requires_grad=False
        )


def _words(tensors: Tensors) -> str:
    each = (
        f"{tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')}" + " with gradient" * t.requires_grad
        for t in tensors
    )
    return ", ".join(each)


_CHANGED = (
    ("modified by an inplace operation",),
    "a forward changes a tensor in place that the backward of an earlier micro-batch still needs (a buffer that "
    "follows weights and takes part in what is trained); plan one stage (--depths 1)",
)
"""Of backwards, where a later forward has changed a tensor."""
_STRANGE = (
    ("device meta", "cpu and meta", "meta and cpu"),
    "a layer reads a weight that none of its own modules holds (of another layer, by a reference or a variable "
    "outside it), and a stage has only those of its layers: register the module or the parameter in each layer that "
    "reads it, as for tied weights",
)
"""Of forwards, where weights have no values."""


@contextmanager
def _explained(signs: Sequence[str], text: str) -> Iterator[None]:
    """Context for a pass: torch's error with one of these signs becomes one about the plan or the model."""
    try:
        yield
    except RuntimeError as error:
        if not any(sign in str(error) for sign in signs):
            raise
        raise PlanError(f"{text}. torch says: {error}") from error
