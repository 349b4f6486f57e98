"""`LayerSequence`: a model as a sequence of layers; `Stages`: a sequence of layers that the user cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class LayerSequence:
    """A sequence of layers equivalent to the unsplit model: each takes the result of the one ahead of it.

    Attributes
    ----------
    names : tuple of str
        Names in a plan's stages; the same in every process that describes the same module and shapes.
    layers : tuple of torch.nn.Module
        ``layer(*tensors)`` returns a tensor or a tuple of tensors. The first one gets the tensors of a batch in order
        (see `frontend.batch`). They hold the parameters and buffers of the described module, not copies.
    parameters : tuple of mapping
        For each layer, the names of its parameters and buffers in the unsplit model, by their names in the layer.
        Anything else in a layer is a constant of the computation, with its values.
    kinds : tuple of str
        For each layer the class of its module, or of the innermost module that contains the layer.
    restore : callable
        ``restore(outputs)`` converts the result of the last layer to that of the unsplit module, which the workload's
        ``loss`` takes: a tensor, a tuple, a dict or any other structure of tensors.
    """

    names: tuple[str, ...]
    layers: tuple[nn.Module, ...]
    parameters: tuple[Mapping[str, str], ...]
    kinds: tuple[str, ...]
    restore: Callable[[Any], Any]


class Stages(nn.Sequential):  # type: ignore[misc]
    """Modules that are called in sequence: a tuple returned by one gives the arguments of the next.

    ``pipeplan`` takes each of them as one layer, unchanged. Called as a module, it runs all of them.

    >>> Stages(Encoder(), Decoder(), Head())                       # doctest: +SKIP
    """

    def forward(self, *inputs: Any) -> Any:
        """Run all modules in sequence."""
        value: Any = inputs
        for stage in self:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        return value
