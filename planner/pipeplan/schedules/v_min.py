"""V-Min: two stages a device in a V, held as briefly as can be (Qi et al., NeurIPS 2024, V-shape building blocks).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18    2 devices, 3 micro-batches, F = I = W = 1;
    device 0    f0 f1 f2 F0 I0 W0 F1 i0 I1 w0 W1 i1 w1 F2 I2 W2  . i2 w2    lower case: near stage, upper case: far
    device 1     . f0 F0 f1 F1 I0 i0 W0 w0 I1 i1 f2 F2 W1 w1 I2 i2 W2 w2    stage

Every wave of its building block moves on by one device a unit. A device holds 2 ⌊(p + 1) / 3⌋ + 2 stage activations,
a third of the 2 p that 1F1B's first device holds, and a few. With equal stages, F = I = W = 1, free links and m ≥ p a
step takes 6 m + 4 p − 5 (6 m + 1 for p = 2; 6 m + 4 p − 7 where 3 divides p), and ZB-V's 6 m + p − 1. There is no slack
between neighbours, so unequal stages and slow links cost more than elsewhere.
"""

from collections.abc import Iterator

from pipeplan.schedules.building_block import Strides, building_block, repeated
from pipeplan.schedules.placed import Order, PlacedFamily, vee

STRIDES = Strides(1, 1, 1, 1)


def orders(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Each device's actions."""
    return repeated(building_block(devices, STRIDES), micro_batches)


FAMILY = PlacedFamily(
    "v-min",
    orders,
    vee,
    "two stages a device in a V, split backwards; about a third of 1F1B's peak memory",
    chunks=2,
    splits=True,
)
