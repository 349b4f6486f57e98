"""How tensors get from stage to stage, as the instance has it.

What a tensor of occupancy o and latency l costs after an action of t (`pipeplan.simulate` draws it), where its wires
are free:

::

    overlap     the action takes     lag after its end
    copy        t                    o + l
    stream      t                    max(0, o − t) + l      it leaves while it is being made
    none        t + o                l                      the device waits until it has left

Where they may not be free, the instance is told the wires and o, and l is the lag. That is so where several boundaries
or both directions share a wire, and where one tensor's way takes longer than the next tensor is made. What no tensor of
the row ever waits for is left out, and so is a wire whose tensors all pass another one together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Transfer

Tensor: TypeAlias = tuple[bool, int]
"""Whether it goes back, and over which boundary."""


@dataclass(frozen=True)
class Ways:
    """Those of one direction, boundary by boundary, as `PipelineSchedule` has them: no wires at all are no entries."""

    lag: tuple[int, ...]
    occupancy: tuple[int, ...]
    wires: tuple[tuple[int, ...], ...]


def ways_of(
    overlap: Overlap, down: Sequence[Transfer], up: Sequence[Transfer], forward: Sequence[int], backward: Sequence[int]
) -> tuple[Ways, Ways]:
    """The tensors of one row, forward and back.

    Parameters
    ----------
    down, up : sequence of Transfer
        One a boundary; `Transfer()` inside a device.
    forward, backward : sequence of int
        What F and I (or B) of each stage take by themselves.
    """
    way = {(False, s): transfer for s, transfer in enumerate(down)} | {(True, s): t for s, t in enumerate(up)}
    made = {(back, s): backward[s + 1] if back else forward[s] for back, s in way}
    wires = _waited_for(overlap, way, made)

    def direction(back: bool) -> Ways:
        boundaries = range(len(down))
        kept = tuple(tuple(number for number, users in enumerate(wires) if (back, s) in users) for s in boundaries)
        lag = tuple(
            way[back, s].latency + (0 if kept[s] else _after(overlap, way[back, s].occupancy, made[back, s]))
            for s in boundaries
        )
        if not any(kept):
            return Ways(lag, (), ())
        return Ways(lag, tuple(way[back, s].occupancy if kept[s] else 0 for s in boundaries), kept)

    return direction(False), direction(True)


def _after(overlap: Overlap, occupancy: int, made: int) -> int:
    """What of a tensor's way is left after the end of its action."""
    if overlap is Overlap.NONE:
        return 0
    return max(0, occupancy - made) if overlap is Overlap.STREAM else occupancy


def _waited_for(overlap: Overlap, way: Mapping[Tensor, Transfer], made: Mapping[Tensor, int]) -> list[set[Tensor]]:
    """The tensors of each wire that some may have to wait for, each wire once."""
    users: dict[str, set[Tensor]] = {}
    for tensor, transfer in way.items():
        for wire in transfer.resources if transfer.occupancy else ():
            users.setdefault(wire, set()).add(tensor)
    found: list[set[Tensor]] = []
    for own in sorted(users.values(), key=len, reverse=True):
        waits = len(own) > 1 or any(overlap is not Overlap.NONE and way[x].occupancy > made[x] for x in own)
        if waits and not any(own <= other for other in found):
            found.append(own)
    return found
