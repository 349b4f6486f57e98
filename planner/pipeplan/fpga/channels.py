"""Output channels of a layer: the number of parts into which it can be divided, read from its counts."""

from pipeplan.core.model import Layer, Model
from pipeplan.costs.layers import item_size

MANY = 10**6
"""Parts of a layer whose counts give no channels: fine enough for any share."""


def channels(model: Model) -> tuple[int, ...]:
    """Return the number of output channels of each layer.

    A convolution with bias, K output channels and N inputs per channel has K (N + 1) weights. It costs 2 N
    operations per number of its output. A linear layer is the case of one position. K is used where both counts agree
    on a whole number; pooling and blocks of several convolutions can be divided anywhere (`MANY`).
    """
    size = item_size(model.dtype)
    return tuple(_channels(layer, size) for layer in model.layers)


def _channels(layer: Layer, size: int) -> int:
    work, count = layer.work, (layer.parameters + layer.frozen) // size
    if work is None or not work.output or not work.forward_flops:
        return MANY
    inputs, odd = divmod(work.forward_flops, 2 * (work.output // size))
    made, rest = divmod(count, inputs + 1)
    whole = not odd and not rest and made and not (work.output // size) % made
    return made if whole else MANY
