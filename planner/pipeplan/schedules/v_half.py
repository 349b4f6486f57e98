"""V-Half: two stages a device in a V, at half of 1F1B's memory (Qi et al., NeurIPS 2024, V-shape building blocks).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18    2 devices, 3 micro-batches, F = I = W = 1;
    device 0    f0 f1 f2 F0 I0 W0 F1 i0 I1 w0 W1 F2 I2 i1 W2 i2 w1 w2  .    lower case: near stage, upper case: far
    device 1     . f0 F0 f1 F1 I0 i0 W0 f2 w0 F2 I1 i1 I2 i2 W1 w1 W2 w2    stage

Of its building block's waves the near forwards and the far input gradients, both on their way down the devices, take
two units from device to device, the others one. A device holds p + 2 stage activations (p + 1 where p is odd), half of
the 2 p that 1F1B's first device holds, and two. With equal stages, F = I = W = 1, free links and m ≥ p a step takes
6 m + 3 p − 7 (6 m + 1 for p = 2; 6 m + 3 p − 4 where p is odd), and ZB-V's 6 m + p − 1.
"""

from collections.abc import Iterator

from pipeplan.schedules.building_block import Strides, building_block, repeated
from pipeplan.schedules.placed import Order, PlacedFamily, vee

STRIDES = Strides(2, 1, 2, 1)


def orders(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Each device's actions."""
    return repeated(building_block(devices, STRIDES), micro_batches)


FAMILY = PlacedFamily(
    "v-half",
    orders,
    vee,
    "two stages a device in a V, split backwards; about half of 1F1B's peak memory",
    chunks=2,
    splits=True,
)
