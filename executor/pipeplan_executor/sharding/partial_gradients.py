"""`PartialGradients`: gradients of whole parameters that each tensor-parallel rank has for its own tokens only.

::

    micro-batches   += part   += part   += part         each rank adds its own, nothing is sent
    R               sum over the group, then over the replicas; in shards of the replicas (ZeRO-2) over the group only

A norm's weight is whole, and each rank sees a part of the tokens. The sum over all tokens is made once per step.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

Gradients: TypeAlias = Iterable[tuple[nn.Parameter, Tensor | None]]
"""Parameters, and their gradients or this replica's shards of them."""


class Summed(Protocol):
    """Gradients of which each tensor-parallel rank has a part of a sum, which is made once per step."""

    def sum(self, gradients: Gradients) -> None:
        """Sum those among these gradients."""

    def keep_once(self, gradients: Gradients) -> None:
        """Let sums that were not used count once in the next sum."""

    def agree(self, parameters: Sequence[nn.Parameter], replicas: dist.ProcessGroup) -> bool:
        """Let all replicas know which gradients are parts; return whether each of them does."""


class PartialGradients:
    """The kinds of gradients that whole parameters of one stage get: partial or whole.

    Parameters
    ----------
    group : ProcessGroup
        The tensor-parallel ranks. All of them call the methods alike.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._is_partial: dict[int, bool] = {}

    @property
    def first(self) -> bool:
        """True on the first tensor-parallel rank."""
        return bool(dist.get_rank(self._group) == 0)

    def is_partial(self, parameter: nn.Parameter, found: bool) -> bool:
        """Return whether the parameter's gradient adds up partial ones; ``found``: whether the present one is partial.

        The first one decides for the whole training.
        """
        return self._is_partial.setdefault(id(parameter), found)

    def agree(self, parameters: Sequence[nn.Parameter], replicas: dist.ProcessGroup) -> bool:
        """Let a replica that has not used a parameter yet know whether the others' gradients of it are partial.

        All replicas call this alike. It returns whether all is known, on each of them.
        """
        own = [self._is_partial.get(id(parameter)) for parameter in parameters]
        known = torch.tensor([0 if each is None else 1 + each for each in own], device=parameters[0].device)
        dist.all_reduce(known, op=dist.ReduceOp.MAX, group=replicas)
        for parameter, each in zip(parameters, known.tolist(), strict=True):
            if each:
                self._is_partial.setdefault(id(parameter), each == 2)
        return bool(known.all())

    def sum(self, gradients: Gradients) -> None:
        """Sum the partial ones among these gradients over the tensor-parallel ranks, in one collective."""
        parts = self._among(gradients)
        if parts:
            flat = torch.cat([part.reshape(-1) for part in parts])
            dist.all_reduce(flat, group=self._group)
            for part, total in zip(parts, flat.split([each.numel() for each in parts]), strict=True):
                part.copy_(total.view_as(part))

    def keep_once(self, gradients: Gradients) -> None:
        """Let sums that were not used count once in the next sum: zero them on all ranks except the first."""
        if not self.first:
            for part in self._among(gradients):
                part.zero_()

    def _among(self, gradients: Gradients) -> list[Tensor]:
        return [
            gradient
            for parameter, gradient in gradients
            if gradient is not None and gradient.numel() and self._is_partial.get(id(parameter))
        ]
