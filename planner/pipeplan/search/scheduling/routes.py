"""Transfer times between stages in the scheduling instance, and the link resources that tensors may wait for.

A tensor has occupancy o and latency l. It follows an action of t. Where its link resources are free, it costs
(`pipeplan.simulate` draws it)

::

    overlap     the action takes     lag after its end
    copy        t                    o + l
    stream      t                    max(0, o − t) + l      the tensor leaves while the action makes it
    none        t + o                l                      the device waits until the tensor has left

Where link resources may be busy, the instance has the resources and o, and l is the lag. That is so where several
boundaries or both directions share a resource, or where a tensor's transfer takes longer than the next tensor is made.
A resource that no tensor of the replica ever waits for is left out. So is one whose tensors all share another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Transfer

Tensor: TypeAlias = tuple[bool, int]
"""Direction (True: back) and boundary of a tensor."""


@dataclass(frozen=True)
class Routes:
    """One direction of `PipelineSchedule`, per boundary; without contended links the last two tuples are empty."""

    lag: tuple[int, ...]
    occupancy: tuple[int, ...]
    resources: tuple[tuple[int, ...], ...]


def routes_of(
    overlap: Overlap, down: Sequence[Transfer], up: Sequence[Transfer], forward: Sequence[int], backward: Sequence[int]
) -> tuple[Routes, Routes]:
    """Return the routes of the tensors of one replica, forward and back.

    Parameters
    ----------
    down, up : sequence of Transfer
        One per boundary; `Transfer()` inside a device.
    forward, backward : sequence of int
        Nanoseconds of F and of I (or B) of each stage, without transfers.
    """
    transfers = {(False, s): transfer for s, transfer in enumerate(down)} | {(True, s): t for s, t in enumerate(up)}
    made = {(back, s): backward[s + 1] if back else forward[s] for back, s in transfers}
    contended = _contended_resources(overlap, transfers, made)

    def direction(back: bool) -> Routes:
        boundaries = range(len(down))
        kept = tuple(tuple(number for number, users in enumerate(contended) if (back, s) in users) for s in boundaries)
        lag = tuple(
            transfers[back, s].latency
            + (0 if kept[s] else _lag_after_end(overlap, transfers[back, s].occupancy, made[back, s]))
            for s in boundaries
        )
        if not any(kept):
            return Routes(lag, (), ())
        return Routes(lag, tuple(transfers[back, s].occupancy if kept[s] else 0 for s in boundaries), kept)

    return direction(False), direction(True)


def _lag_after_end(overlap: Overlap, occupancy: int, made: int) -> int:
    """Nanoseconds of a tensor's occupancy that are left after the end of its action."""
    if overlap is Overlap.NONE:
        return 0
    return max(0, occupancy - made) if overlap is Overlap.STREAM else occupancy


def _contended_resources(
    overlap: Overlap, transfers: Mapping[Tensor, Transfer], made: Mapping[Tensor, int]
) -> list[set[Tensor]]:
    """The tensors of each link resource on which some tensor may have to wait; equal or contained sets once."""
    users: dict[str, set[Tensor]] = {}
    for tensor, transfer in transfers.items():
        for resource in transfer.resources if transfer.occupancy else ():
            users.setdefault(resource, set()).add(tensor)
    found: list[set[Tensor]] = []
    for own in sorted(users.values(), key=len, reverse=True):
        waits = len(own) > 1 or any(overlap is not Overlap.NONE and transfers[x].occupancy > made[x] for x in own)
        if waits and not any(own <= other for other in found):
            found.append(own)
    return found
