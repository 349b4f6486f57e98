"""One captured layer as a module."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeplan.core.errors import InputError
from pipeplan.frontend.capture.graph.tables import Shelf


class GraphLayer(nn.Module):  # type: ignore[misc]
    """Nodes of a captured graph between two cuts.

    Its parameters and buffers lie in ``body`` and ``constants``. Flags follow ``train()`` and ``eval()``, devices the
    first tensor it is called with.

    Parameters
    ----------
    body : torch.fx.GraphModule
        ``body(training, device, *tables, *tensors)``.
    constants : torch.fx.GraphModule, optional
        ``constants(training, device)`` makes the tables.
    tables : sequence of str
        What the tables are called on the shelf.
    shapes : sequence of torch.Size
        Of the tensors that it is called with.
    """

    def __init__(
        self,
        name: str,
        body: fx.GraphModule,
        constants: nn.Module | None,
        tables: Sequence[str],
        shelf: Shelf,
        shapes: Sequence[torch.Size],
    ) -> None:
        super().__init__()
        self.name, self.body, self.constants = name, body, constants
        self._tables, self._shelf, self._shapes = tuple(tables), shelf, tuple(shapes)

    def forward(self, *tensors: Tensor) -> Any:
        """The tensors that the next layer takes."""
        if tuple(tensor.shape for tensor in tensors) != self._shapes:
            self._refuse(tensors)
        first = tensors[0]
        tables = self._shelf.tables(self._tables, self.constants, first) if self.constants is not None else ()
        return self.body.forward(self.training, first.device, *tables, *tensors)

    def _refuse(self, tensors: Sequence[Tensor]) -> None:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        expected = ", ".join(str(tuple(shape)) for shape in self._shapes)
        raise InputError(
            f"layer {self.name} was captured for tensors of shape {expected} and was called with {found}; a captured "
            "graph is fixed to one micro-batch size: capture the model again for another, and drop a smaller last batch"
        )
