"""The lists of families that place stages: two are written here, others asked for.

Those that are asked for are checked against their papers elsewhere; with `bridge` and `collectives` this file may
import the project.
"""

from functools import cache

from pipeplan.schedules import PLACED as WRITTEN

Row = tuple[str, int, int]
"""A pass, its stage and its micro-batch."""

PLACED = {
    "interleaved": (None, False, False),
    "looped-bfs": (None, False, False),
    "zb-h1": (1, False, True),
    "zb-h2": (1, False, True),
    "zb-v": (2, True, True),
    "v-half": (2, True, True),
    "v-min": (2, True, True),
    "dualpipe-v": (2, True, True),
}
"""Rounds of a family (None: any number above one), whether every second one turns, and whether backwards are split."""

SPLIT = tuple(name for name, (*_, splits) in PLACED.items() if splits)
JOINING = ("dualpipe-v",)
"""Families of which some backwards are split, and others not."""


@cache
def orders(name: str, devices: int, micro_batches: int, rounds: int) -> tuple[tuple[Row, ...], ...]:
    """Forwards and backwards of each device of a pipeline without replicas."""
    if name == "interleaved":
        return tuple(_interleaved(device, devices, micro_batches, rounds) for device in range(devices))
    if name == "looped-bfs":
        return tuple(_looped(device, devices, micro_batches, rounds) for device in range(devices))
    lists = WRITTEN[name].orders(devices, micro_batches, rounds)
    return tuple(tuple((str(each.kind), each.stage, each.micro_batch) for each in own) for own in lists)


def _interleaved(device: int, devices: int, micro_batches: int, rounds: int) -> tuple[Row, ...]:
    """One forward, one backward behind a warm-up; lots of micro-batches pass all stages of a device in turn.

    Lots hold a micro-batch for each device, or a few more so that there are no small ones; the first ones hold most.
    """
    lots = max(micro_batches // devices, 1)
    sizes = [micro_batches // lots + (lot < micro_batches % lots) for lot in range(lots)]
    starts = [sum(sizes[:lot]) for lot in range(lots)]
    passes = [
        (chunk, first + m)
        for first, size in zip(starts, sizes, strict=True)
        for chunk in range(rounds)
        for m in range(size)
    ]
    back = [
        (chunk, first + m)
        for first, size in zip(starts, sizes, strict=True)
        for chunk in reversed(range(rounds))
        for m in range(size)
    ]
    ahead = min((rounds - 1) * sizes[0] + 2 * (devices - 1 - device), len(passes))
    order = [("F", chunk * devices + device, m) for chunk, m in passes[:ahead]]
    for i, (chunk, m) in enumerate(back):
        order += [("F", c * devices + device, later) for c, later in passes[i + ahead : i + ahead + 1]]
        order.append(("B", chunk * devices + device, m))
    return tuple(order)


def _looped(device: int, devices: int, micro_batches: int, rounds: int) -> tuple[Row, ...]:
    """All forwards of one stage after those of another, then all backwards."""
    stages = [chunk * devices + device for chunk in range(rounds)]
    ahead = [("F", s, m) for s in stages for m in range(micro_batches)]
    return (*ahead, *(("B", s, m) for s in reversed(stages) for m in range(micro_batches)))
