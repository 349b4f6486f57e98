"""ZB-V: two stages a device, down and up again, no device ever waits (Qi et al., ICLR 2024, section 6).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18    2 devices, 3 micro-batches, F = I = W = 1;
    device 0    f0 f1 f2 F0 I0 W0 F1 I1 W1 i0 w0 F2 I2 W2 i1 w1 i2 w2  .    lower case: near stage, upper case: far
    device 1     . f0 F0 f1 F1 I0 W0 f2 i0 w0 F2 I1 W1 i1 I2 i2 w1 W2 w2    stage

The last stage is on the first device, so there a micro-batch's backward begins at once. Every device holds 2 p stage
activations, which is what 1F1B's first device holds. With equal stages, F = I = W = 1 and free links no device waits
between its first action and its last from m = 2 p − 1 on, and a step takes 6 m + p − 1.

The word of device d of p: f until the first F can run, both in turn until the first I can, then F I W till the first i
comes back, and f i w F I W in turn. When the f have run out, i w F I W; at the end the weight gradients that were put
off. A step of fewer than 2 p − 1 micro-batches is that of 2 p − 1 without the others.
"""

from collections.abc import Iterator

from pipeplan.schedules.placed import Order, PlacedFamily, vee
from pipeplan.schedules.words import spell


def orders(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Each device's actions."""
    long = max(micro_batches, 2 * devices - 1)
    return (tuple(spell(_word(d, devices, long), d, devices, micro_batches)) for d in range(devices))


def _word(device: int, devices: int, micro_batches: int) -> str:
    after = devices - device  # devices from this one to the turn
    warm = "f" * (2 * after - 1) + "Ff" * device + "FIW" * after
    steady = "fiwFIW" * (micro_batches - 2 * devices + 1 + device) + "iwFIW" * (after - 1)
    return warm + steady + "iI" * device + "iw" * after + "W" * device + "w" * device


FAMILY = PlacedFamily(
    "zb-v",
    orders,
    vee,
    "two stages a device in a V, split backwards; devices never wait, at 1F1B's peak memory",
    chunks=2,
    splits=True,
)
