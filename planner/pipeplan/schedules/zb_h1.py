"""ZB-H1: 1F1B whose weight gradients fill the bubble, at 1F1B's peak memory (Qi et al., ICLR 2024, section 2).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13      3 devices, 4 micro-batches, F = I = W = 1
    device 0    F0 F1 F2  .  . I0 W0 F3 I1 W1 I2 W2 I3 W3
    device 1     . F0 F1  . I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    device 2     .  . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

Device d of p (from 0) warms up with p − d forwards and runs its weight gradients d micro-batches late, so every device
holds p micro-batches. With equal stages, F = I = W = 1 and free links a step takes 3 m + p − 1 from m = p on, which no
schedule with one stage a device undercuts: the last device begins at p − 1.
"""

from collections.abc import Iterator

from pipeplan.schedules.placed import Order, PlacedFamily, loop
from pipeplan.schedules.split_alternate import late_weights


def orders(devices: int, micro_batches: int, _chunks: int = 1) -> Iterator[Order]:
    """Each device's actions."""
    return (tuple(late_weights(d, micro_batches, devices - d, d)) for d in range(devices))


FAMILY = PlacedFamily(
    "zb-h1",
    orders,
    loop,
    "1F1B with weight gradients in the bubble; every device holds as many micro-batches as there are devices",
    chunks=1,
    splits=True,
)
