"""Looped BFS: all micro-batches through one chunk, then through the next (Lamy-Poirier, MLSys 2023).

::

    time         0  1  2  3  4  5  6  7  8  9 10 11 12 13     2 devices, 2 chunks, 3 micro-batches, F = B = 1;
    device 0    f0 f1 f2 F0 F1 F2  .  . B0 B1 B2 b0 b1 b2     lower case: stages 0 and 1, upper case: 2 and 3
    device 1     . f0 f1 f2 F0 F1 F2 B0 B1 B2 b0 b1 b2  .

GPipe over several chunks: every device holds all m micro-batches of all v chunks, and while it works on the others a
tensor has time to travel from the last device to the first. With equal stages, free links and m ≥ p a step takes
(m v + p − 1)(F + B), F and B those of a chunk. Backwards run in the order of the forwards (torch runs them the other
way round, which takes as long).
"""

from collections.abc import Iterator

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.placed import Order, PlacedFamily, loop


def orders(devices: int, micro_batches: int, chunks: int) -> Iterator[Order]:
    """Each device's forwards, chunk by chunk, then its backwards, the last chunk first."""
    for device in range(devices):
        stages = range(device, devices * chunks, devices)
        forwards = (Action(Kind.FORWARD, stage, m) for stage in stages for m in range(micro_batches))
        backwards = (Action(Kind.BACKWARD, stage, m) for stage in reversed(stages) for m in range(micro_batches))
        yield (*forwards, *backwards)


FAMILY = PlacedFamily(
    "looped-bfs",
    orders,
    loop,
    "all forwards chunk by chunk, then all backwards; holds every micro-batch of every chunk",
    chunks=None,
)
