"""The user's own stage modules in a row, each of which may pass several tensors on."""

from typing import Any

from torch import nn


class Stages(nn.Sequential):  # type: ignore[misc]
    """Modules that are called one after the other: a tuple that one returns is the arguments of the next.

    ``pipeplan`` takes each of them as one layer, as it stands. As a module it computes what they compute together.

    >>> Stages(Encoder(), Decoder(), Head())                       # doctest: +SKIP
    """

    def forward(self, *inputs: Any) -> Any:
        """Through all of them."""
        value: Any = inputs
        for stage in self:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        return value
