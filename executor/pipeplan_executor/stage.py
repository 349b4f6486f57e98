"""One stage on this rank: what it computes, and what it keeps of each micro-batch from forward to backward.

::

             x ─▶ leaf ─▶ layers ─▶ output ─▶ next stage            kept: the leaf, the graph, but not the output:
    gradient ◀──────────  graph  ◀─ gradient                        that is gone once the network has taken it
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipeplan.deferred.attach import attach
from pipeplan.deferred.queue import WeightQueue, Work, work_off

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class _Kept:
    """Of one micro-batch: where its graph begins and ends."""

    leaf: Tensor
    root: GradientEdge | None


class StageWork:
    """The layers of a stage, forward and backward, micro-batch by micro-batch.

    Parameters
    ----------
    module : torch.nn.Module
        One tensor in, one tensor out.
    wants_gradient : bool
        Whether a stage ahead waits for the gradient of this one's input.
    loss : callable, optional
        On the last stage: ``loss(outputs, targets)``, already weighted for one micro-batch.
    split : set of int
        The micro-batches for which I and W follow instead of B.
    """

    def __init__(
        self, module: nn.Module, wants_gradient: bool, loss: Loss | None = None, split: Set[int] = frozenset()
    ) -> None:
        self._module, self._wants_gradient, self._loss, self._split = module, wants_gradient, loss, split
        self._queue = WeightQueue()
        if split:
            attach(self._queue, [module])
        self._kept: dict[int, _Kept] = {}
        self._waiting: dict[int, Sequence[Work]] = {}
        self.losses: dict[int, Tensor] = {}

    def clear(self) -> None:
        """Forget an earlier step, be it broken off."""
        self._kept, self._waiting, self.losses = {}, {}, {}
        self._queue.clear()

    def forward(self, number: int, inputs: Tensor, targets: Tensor | None) -> Tensor | None:
        """F: the output for the next stage, contiguous and apart from the graph; None from the last stage."""
        leaf = inputs.detach()
        if self._wants_gradient and leaf.is_floating_point():
            leaf.requires_grad_()
        with self._queue.opened(number in self._split):
            output = self._module(leaf)
            if self._loss is not None:
                assert targets is not None
                output = self._loss(output, targets)
                self.losses[number] = output.detach()
        self._kept[number] = _Kept(leaf, get_gradient_edge(output) if output.requires_grad else None)
        if self._loss is not None:
            return None
        return output.detach().contiguous()

    def backward(self, number: int, gradient: Tensor | None) -> Tensor | None:
        """B: add to the parameters' gradients; the input's gradient, if a stage waits for it."""
        kept = self._kept.pop(number)
        if kept.root is not None:
            torch.autograd.backward([kept.root], None if gradient is None else [gradient])
        return self._returned(kept.leaf, kept.leaf.grad)

    def input_gradient(self, number: int, gradient: Tensor | None) -> Tensor | None:
        """I: B, but that weight gradients wait which can (see `pipeplan.deferred`)."""
        with self._queue.opened():
            found = self.backward(number, gradient)
        self._waiting[number] = self._queue.take()
        return found

    def weight_gradient(self, number: int) -> None:
        """W: add to the parameters' gradients what I left."""
        work_off(self._waiting.pop(number))

    def _returned(self, leaf: Tensor, gradient: Tensor | None) -> Tensor | None:
        if not leaf.requires_grad:
            return None
        return torch.zeros_like(leaf) if gradient is None else gradient.contiguous()
