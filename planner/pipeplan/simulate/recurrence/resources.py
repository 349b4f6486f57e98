"""Check that transfers over links of their own never use a shared resource at the same time.

Then their times are those of the simulator, which serves each resource in the order of readiness. There a transfer
begins at the largest of its readiness and the ends of the ones before it on its resources. With links of their own only
those of the same channel count, and the others change nothing if they have ended by then. Where all actions take time,
these equations have one solution, because each time depends on earlier ones only.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Kind
from pipeplan.simulate.recurrence.leaps import Record, Transfers
from pipeplan.simulate.recurrence.ticks import Channel, Recurrence

LARGEST = 2**62
"""Times from here on are not checked."""


def competing(recurrence: Recurrence) -> bool:
    """Return True if replicas of one stage send over the same resource, or an action takes no time.

    Replicas of a stage work in step, so their transfers meet; ties are decided by the event loop.
    """
    kinds = (Kind.FORWARD, Kind.BACKWARD)
    if any(not stage.duration(kind) for stage in recurrence.pipeline.stages for kind in kinds):
        return True
    for row in (*recurrence.onward, *recurrence.back):
        names = [
            (name, channel.device) for channel in row for name in set(channel.shared) if channel.transfer.occupancy
        ]
        if len(set(names)) > len({name for name, _ in names}):
            return True
    return False


def undisturbed(recurrence: Recurrence, record: Record, latest: int) -> bool:
    """Return True if no transfer would have waited for a resource that another channel uses.

    All actions must take time. ``latest`` is no earlier than any of the recorded times. False may also mean that it
    could not be decided.
    """
    if latest >= LARGEST:
        return False
    users: dict[str, list[Channel]] = defaultdict(list)
    for channel in recurrence.shared:
        for name in channel.shared:
            users[name].append(channel)
    times = {channel.link: _times(recurrence, channel, record[channel.link]) for channel in recurrence.shared}
    for channels in users.values():
        rows = [times[channel.link] for channel in channels]
        ready, begin, end = (np.concatenate(column) for column in zip(*rows, strict=True))
        device = np.repeat([channel.device for channel in channels], [len(row[0]) for row in rows])
        order = np.lexsort((device, ready))
        if (begin[order][1:] < end[order][:-1]).any():
            return False
    return True


def _times(recurrence: Recurrence, channel: Channel, found: list[Transfers]) -> tuple[NDArray[np.int64], ...]:
    """Return when each transfer of a channel is ready, begins and ends."""
    log = np.concatenate([_expand(transfers) for transfers in found]).reshape(-1, 2)
    occupancy = channel.transfer.occupancy
    waits = recurrence.pipeline.overlap is Overlap.NONE  # there an action's logged end is that of its send
    return log[:, 0] - (occupancy if waits else 0), log[:, 1] - occupancy, log[:, 1]


def _expand(transfers: Transfers) -> NDArray[np.int64]:
    log, rates = (np.array(row, np.int64) for row in (transfers.log, transfers.rates))
    found: NDArray[np.int64] = log - rates * np.arange(transfers.repetitions - 1, -1, -1)[:, None]
    return found.ravel()
