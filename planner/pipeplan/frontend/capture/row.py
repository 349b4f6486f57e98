"""`Row`: a model as a row of layers; `Stages`: layers in a row that the user cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Row:
    """Layers that together are the unsplit model: each is called with what the one ahead of it returned.

    Attributes
    ----------
    names : tuple of str
        What a plan's stages list; the same in every process that describes the same module and shapes.
    layers : tuple of torch.nn.Module
        ``layer(*tensors)`` returns a tensor or a tuple of tensors. The first one gets the tensors of a batch in order
        (see `frontend.batch`). They hold the parameters and buffers of the module that was described, not copies.
    parameters : tuple of mapping
        For each layer, what each of its parameters and buffers is called in the unsplit model, by its name inside the
        layer. What a layer holds beyond that are constants of the computation, which have their values.
    kinds : tuple of str
        For each layer the class of the module that it is, or of the innermost one that it belongs to.
    restore : callable
        ``restore(outputs)``: from what the last layer returns to what the unsplit module returns, which the workload's
        ``loss`` is called with: a tensor, a tuple, a dict or any other structure of tensors.
    """

    names: tuple[str, ...]
    layers: tuple[nn.Module, ...]
    parameters: tuple[Mapping[str, str], ...]
    kinds: tuple[str, ...]
    restore: Callable[[Any], Any]


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
