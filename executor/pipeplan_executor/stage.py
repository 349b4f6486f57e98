"""One stage on this rank: what it computes, and what it keeps of each micro-batch from forward to backward.

::

             x ─▶ leaf ─▶ layers ─▶ output ─▶ next stage            kept: the leaf, the graph, but not the output:
    gradient ◀──────────  graph  ◀─ gradient                        that is gone once the network has taken it
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

if TYPE_CHECKING:
    from pipeplan_executor.split_backward import ParameterGroups

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class _Kept:
    """Of one micro-batch: where its graph begins and ends, and what the split backward leaves for W."""

    leaf: Tensor
    root: Tensor | GradientEdge | None
    gradient: Tensor | None = None
    groups: "ParameterGroups | None" = None


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
        if split:  # half of a worker's start-up time, and some 50 MiB, for what few plans need
            from pipeplan_executor import split_backward

            self._parts = split_backward
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._kept: dict[int, _Kept] = {}
        self.losses: dict[int, Tensor] = {}

    def clear(self) -> None:
        """Forget an earlier step, be it broken off."""
        self._kept, self.losses = {}, {}

    def forward(self, number: int, inputs: Tensor, targets: Tensor | None) -> Tensor | None:
        """F: the output for the next stage, contiguous and apart from the graph; None from the last stage."""
        leaf = inputs.detach()
        if self._wants_gradient and leaf.is_floating_point():
            leaf.requires_grad_()
        output = self._module(leaf)
        if self._loss is not None:
            assert targets is not None
            output = self._loss(output, targets)
            self.losses[number] = output.detach()
            self._kept[number] = _Kept(leaf, output if output.requires_grad else None)
            return None
        if not output.requires_grad:
            self._kept[number] = _Kept(leaf, None)
        elif number in self._split:
            output = self._parts.own(output)
            self._kept[number] = _Kept(leaf, output)
        else:
            self._kept[number] = _Kept(leaf, get_gradient_edge(output))
        return output.detach().contiguous()

    def backward(self, number: int, gradient: Tensor | None) -> Tensor | None:
        """B: add to the parameters' gradients; the input's gradient, if a stage waits for it."""
        kept = self._kept.pop(number)
        if kept.root is not None:
            torch.autograd.backward([kept.root], None if gradient is None else [gradient])
        return self._returned(kept.leaf, kept.leaf.grad)

    def input_gradient(self, number: int, gradient: Tensor | None) -> Tensor | None:
        """I: the input's gradient. Without a stage ahead there is nothing to do, and W is the whole backward."""
        kept = self._kept[number]
        if not isinstance(kept.root, Tensor) or not kept.leaf.requires_grad:
            kept.gradient = gradient
            return self._returned(kept.leaf, None)
        found, kept.groups = self._parts.input_gradient(kept.root, gradient, kept.leaf, self._parameters)
        kept.root = None
        return self._returned(kept.leaf, found)

    def weight_gradient(self, number: int) -> None:
        """W: add to the parameters' gradients."""
        kept = self._kept.pop(number)
        if kept.groups is not None:
            self._parts.weight_gradients(kept.groups, self._parameters)
        elif kept.root is not None:
            torch.autograd.backward([kept.root], None if kept.gradient is None else [kept.gradient])

    def _returned(self, leaf: Tensor, gradient: Tensor | None) -> Tensor | None:
        if not leaf.requires_grad:
            return None
        return torch.zeros_like(leaf) if gradient is None else gradient.contiguous()
