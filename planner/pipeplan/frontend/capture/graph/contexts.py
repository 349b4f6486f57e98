"""Parts of a layer that run without gradients or in another precision, as the module wrote them."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn


class Within(nn.Module):  # type: ignore[misc]
    """Runs a part of a layer in its contexts, outermost first: ``("grad", enabled)``, ``("autocast", dtype, …)``."""

    def __init__(self, part: nn.Module, contexts: Sequence[tuple[Any, ...]]) -> None:
        super().__init__()
        self.part = part
        self.contexts = tuple(contexts)

    def forward(self, training: bool, device: torch.device, *tensors: Tensor) -> Any:
        """As the part."""
        with ExitStack() as stack:
            for name, *values in self.contexts:
                if name == "grad":
                    stack.enter_context(torch.set_grad_enabled(values[0]))
                else:
                    dtype, enabled, cache = values
                    kind = "cpu" if device.type == "meta" else device.type
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cache))
            return self.part.forward(training, device, *tensors)
