"""ZB-H1 and ZB-H2: 1F1B with split backwards and delayed weight gradients."""

from collections.abc import Iterator

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.placed import Order, PlacedFamily, loop


def late_weights(stage: int, micro_batches: int, in_flight: int, late: int) -> Iterator[Action]:
    """Yield a device's list in ZB-H1 and ZB-H2: 1F1B with weight gradients delayed by ``late`` micro-batches.

    ::

        k = 2, 1 late, 4 micro-batches      F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3

    W(i − late) runs after I(i), and a forward after both, so the device holds at most k + late micro-batches. Forwards
    and I are in 1F1B's order, so the lists do not deadlock if 1F1B's do not: if k never grows from a stage to the next.
    """
    for m in range(min(in_flight, micro_batches)):
        yield Action(Kind.FORWARD, stage, m)
    for m in range(micro_batches):
        yield Action(Kind.INPUT_GRADIENT, stage, m)
        if m >= late:
            yield Action(Kind.WEIGHT_GRADIENT, stage, m - late)
        if m + in_flight < micro_batches:
            yield Action(Kind.FORWARD, stage, m + in_flight)
    for m in range(max(micro_batches - late, 0), micro_batches):
        yield Action(Kind.WEIGHT_GRADIENT, stage, m)


def _zb_h1(devices: int, micro_batches: int, _chunks: int = 1) -> Iterator[Order]:
    """Yield ZB-H1: weight gradients fill 1F1B's bubble, at 1F1B's peak memory (Qi et al., ICLR 2024, section 2).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13      3 devices, 4 micro-batches, F = I = W = 1
        device 0    F0 F1 F2  .  . I0 W0 F3 I1 W1 I2 W2 I3 W3
        device 1     . F0 F1  . I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
        device 2     .  . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

    Device d of p (from 0) warms up with p − d forwards and delays its weight gradients by d micro-batches, so every
    device holds p micro-batches. With equal stages, F = I = W = 1 and free links a step takes 3 m + p − 1 for m ≥ p. No
    schedule with one stage per device is faster, because the last device begins at p − 1.
    """
    return (tuple(late_weights(d, micro_batches, devices - d, d)) for d in range(devices))


ZB_H1 = PlacedFamily(
    "zb-h1",
    _zb_h1,
    loop,
    "1F1B with weight gradients in the bubble; every device holds as many micro-batches as there are devices",
    chunks=1,
    splits=True,
    held=lambda devices, micro_batches, _: ((min(devices, micro_batches),),) * devices,
)


def _zb_h2(devices: int, micro_batches: int, _chunks: int = 1) -> Iterator[Order]:
    """Yield ZB-H2: twice the warm-up of ZB-H1, without idle devices (Qi et al., ICLR 2024, section 2).

    ::

        time         0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16     3 devices, 5 micro-batches, F = I = W = 1
        device 0    F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4  .  .
        device 1     . F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4  .
        device 2     .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    Device d of p (from 0) warms up with 2 (p − d) − 1 forwards and delays its weight gradients by 2 d micro-batches, so
    every device holds 2 p − 1 micro-batches. With equal stages, F = I = W = 1 and free links no device waits between
    its first action and its last for m ≥ 2 p − 1, and a step takes 3 m + p − 1. ZB-H1 takes the same time: in a
    synchronous step the last device begins at p − 1 in both. Only the first device ends earlier, which helps where
    devices may begin the next step independently.
    """
    return (tuple(late_weights(d, micro_batches, 2 * (devices - d) - 1, 2 * d)) for d in range(devices))


ZB_H2 = PlacedFamily(
    "zb-h2",
    _zb_h2,
    loop,
    "zb-h1 with twice the warm-up: devices never wait, and hold 2 p - 1 micro-batches",
    chunks=1,
    splits=True,
    held=lambda devices, micro_batches, _: ((min(2 * devices - 1, micro_batches),),) * devices,
)


FAMILIES = (ZB_H1, ZB_H2)
