"""`PartialGradients`: gradients of whole parameters that each tensor-parallel rank has for its own tokens only.

::

    micro-batches   += part   += part   += part         each rank adds its own, nothing is sent
    R               sum over the group, then over the replicas

A norm's weight is whole, and each rank sees a part of the tokens. The sum over all tokens is made once per step.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


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

    def sum(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the partial gradients among those of the parameters over the tensor-parallel ranks, in one collective."""
        gradients = self._of(parameters)
        if gradients:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=self._group)
            for gradient, total in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def keep_once(self, parameters: Iterable[nn.Parameter]) -> None:
        """Let sums that were not used count once in the next sum: zero them on all ranks except the first."""
        if not self.first:
            for gradient in self._of(parameters):
                gradient.zero_()

    def _of(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        found = (parameter.grad for parameter in parameters if self._is_partial.get(id(parameter)))
        return [gradient for gradient in found if gradient is not None]
