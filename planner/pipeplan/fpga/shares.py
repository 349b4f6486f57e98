"""Shares of layers: of equal work for every device, and the parts into which a layer can be divided.

`balanced` is BaPipe's intra-layer partition as we understand it (arXiv 2012.12544 published no code): after the layers
are cut, the layer on each boundary is divided between its neighbours so that both reach the target T*. Links, on-chip
memory and the step time are not considered.
"""

from itertools import pairwise

import numpy as np

from pipeplan.core.model import Layer, Model
from pipeplan.costs.layers import item_size
from pipeplan.fpga.line import Line
from pipeplan_formulations.fractional import Positions

ROUNDS = 60
"""Halvings of the interval that holds T*."""
MANY = 10**6
"""Parts of a layer whose counts give no channels: fine enough for any share."""


def balanced(line: Line) -> Positions | None:
    """Boundaries with equal forward and backward time on every device, weights streamed; None if they do not fit.

    T* is the least time per device in which the devices, filled one after the other, can do all the work.
    """
    work = line.chain.forward + line.chain.backward
    low, high = 0.0, float(work[0].sum())
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if _fill(work, middle)[-1] >= work.shape[1] else (middle, high)
    positions = (*_fill(work, high)[:-1], float(work.shape[1]))
    ordered = all(a <= b for a, b in pairwise(positions))
    return positions if ordered and line.problem.feasible(positions) else None


def _fill(work: np.ndarray, target: float) -> list[float]:
    """Positions of the boundaries when each device works for ``target`` nanoseconds."""
    layers = work.shape[1]
    positions = [0.0]
    for row in work:
        # done[k]: work of the first k layers from `start`; begun: work on layer `start` by the devices before.
        start = int(positions[-1])
        done = np.concatenate([[0.0], np.cumsum(row[start:], dtype=np.float64)])
        begun = (positions[-1] - start) * float(row[start]) if start < layers else 0.0
        reach = int(np.searchsorted(done, begun + target, side="right")) - 1
        left = begun + target - float(done[reach])
        inside = start + reach < layers and row[start + reach] > 0
        positions.append(min(float(layers), start + reach + (left / float(row[start + reach]) if inside else 0.0)))
    return positions


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
