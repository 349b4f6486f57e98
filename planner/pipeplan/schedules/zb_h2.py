"""ZB-H2: twice the warm-up of ZB-H1, so that no device ever waits (Qi et al., ICLR 2024, section 2).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16     3 devices, 5 micro-batches, F = I = W = 1
    device 0    F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4  .  .
    device 1     . F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4  .
    device 2     .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

Device d of p (from 0) warms up with 2 (p − d) − 1 forwards and runs its weight gradients 2 d micro-batches late, so
every device holds 2 p − 1 micro-batches. With equal stages, F = I = W = 1 and free links no device waits between its
first action and its last from m = 2 p − 1 on, and a step takes 3 m + p − 1. That is no less than ZB-H1 takes: in a
synchronous step the last device begins p − 1 late anyway. What ends earlier is the first device's part, which helps
only where a device may begin the next step on its own.
"""

from collections.abc import Iterator

from pipeplan.schedules.placed import Order, PlacedFamily, loop
from pipeplan.schedules.split_alternate import late_weights


def orders(devices: int, micro_batches: int, _chunks: int = 1) -> Iterator[Order]:
    """Each device's actions."""
    return (tuple(late_weights(d, micro_batches, 2 * (devices - d) - 1, 2 * d)) for d in range(devices))


FAMILY = PlacedFamily(
    "zb-h2",
    orders,
    loop,
    "zb-h1 with twice the warm-up: devices never wait, and hold 2 p - 1 micro-batches",
    chunks=1,
    splits=True,
)
