"""Chimera: two 1F1B pipelines in opposite directions."""

from collections.abc import Iterator

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.placed import Order, PlacedFamily, both_ways


def orders(devices: int, micro_batches: int, _chunks: int = 2) -> Iterator[Order]:
    """Yield Chimera: two pipelines in opposite directions on the same devices (Li and Hoefler, SC 2021, section 3).

    ::

        time         0  1  2  3  4  5  6  7  8  9     4 devices, 4 micro-batches, F = B = 1; odd micro-batches go up
        device 0    F0 F2  . F1 B1 F3 B3 B0  . B2
        device 1     . F0 F1 F2 F3 B1 B0 B3 B2  .
        device 2     . F1 F0 F3 F2 B0 B1 B2 B3  .
        device 3    F1 F3  . F0 B0 F2 B2 B1  . B3

    Every stage has two replicas, on mirrored devices, at the cost of a second copy of the weights and a reduction. A
    unit has p / 2 micro-batches per direction. Its j-th begins on the direction's i-th device at i + 2 j and returns to
    it at 2 p − 1 − i + 2 j. For even p the two directions never overlap on a device, and a unit begins every 2 p. A
    device holds p micro-batches, over both its stages. With equal stages, F = B = 1, free links and m a multiple of p,
    a step takes 2 m + p − 2, where 1F1B takes 2 m + 2 p − 2. Where B is longer than F the same lists leave gaps between
    units (the paper then joins two units in another way).
    """
    for device in range(devices):
        starts = {}
        for m in range(micro_batches):
            stage = device if m % 2 == 0 else devices - 1 - device
            unit, j = divmod(m // 2, devices // 2)
            begin = 2 * (devices * unit + j)
            starts[Action(Kind.FORWARD, stage, m)] = begin + stage
            starts[Action(Kind.BACKWARD, stage, m)] = begin + 2 * devices - 1 - stage
        yield tuple(sorted(starts, key=starts.__getitem__))


FAMILIES = (
    PlacedFamily(
        "chimera",
        orders,
        both_ways,
        "two 1F1B pipelines in opposite directions; half the bubble for a second copy of the weights",
        chunks=2,
        even=True,
    ),
)
