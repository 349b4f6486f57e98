"""The fastest of *all* schedules of a tiny pipeline, by trying every order of every device.

It shares nothing with the simulator or the formulations. Rules, for stage s and micro-batch m:

::

    F(s, m) needs F(s − 1, m) and its tensor;  B(s, m) needs F(s, m), and B(s + 1, m) and its tensor;
    U(s) follows the last B(s, ·); the step ends with the last U.

    copy     F ████            the tensor takes its link when the action has ended and the link is free
             link    ▒▒▒▒··▶   (▒ occupancy, · latency)
    none     F ████▒▒▒▒··▶     the device itself is busy while it sends
    stream   F ████            the tensor takes its link when the action starts and the link is free,
             link ▒▒▒▒▒▒··▶    and is there a latency after both have ended
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product


@dataclass(frozen=True)
class TinyPipeline:
    """Times of stages (forward, backward, update) and links (send, send_back, latency)."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    latency: tuple[int, ...]
    overlap: str


Order = tuple[tuple[str, int], ...]


@cache
def orders(micro_batches: int) -> tuple[Order, ...]:
    """Every order of a device's actions in which each backward follows its forward."""

    def extend(done: Order) -> Iterator[Order]:
        if len(done) == 2 * micro_batches:
            yield done
        for m in range(micro_batches):
            if ("F", m) not in done:
                yield from extend((*done, ("F", m)))
            elif ("B", m) not in done:
                yield from extend((*done, ("B", m)))

    return tuple(extend(()))


def fastest(pipeline: TinyPipeline, micro_batches: int) -> int:
    """The least step time over all combinations of orders."""
    stages = len(pipeline.forward)
    # Micro-batches are alike, so the first device may as well begin them in the order of their numbers.
    first = [o for o in orders(micro_batches) if [m for kind, m in o if kind == "F"] == list(range(micro_batches))]
    rest = [orders(micro_batches)] * (stages - 1)
    times = (step_time(pipeline, combination) for combination in product(first, *rest))
    return min(time for time in times if time is not None)


def step_time(p: TinyPipeline, combination: tuple[Order, ...]) -> int | None:
    """Everything as early as its order allows; None if the orders wait for each other for ever."""
    last = len(p.forward) - 1
    there: dict[tuple[str, int, int], int] = {}  # when the tensors that (kind, stage, micro-batch) waits for are there
    device = [0] * (last + 1)
    wire: dict[tuple[int, str], int] = {}
    position = [0] * (last + 1)
    micro_batches = len(combination[0]) // 2
    there.update({("F", 0, m): 0 for m in range(micro_batches)})
    moved = True
    while moved:
        moved = False
        for s, order in enumerate(combination):
            while position[s] < len(order):
                kind, m = order[position[s]]
                ready = there.get((kind, s, m))
                if ready is None:
                    break
                moved = True
                position[s] += 1
                start = max(device[s], ready)
                end = start + (p.forward[s] if kind == "F" else p.backward[s])
                device[s] = end
                if kind == "F" and s == last:
                    there["B", s, m] = end
                elif kind == "F" or s > 0:
                    target, link = (s + 1, s) if kind == "F" else (s - 1, s - 1)
                    busy = p.send[link] if kind == "F" else p.send_back[link]
                    if p.overlap == "none":
                        arrival = device[s] = end + busy
                    else:
                        leave = max(start if p.overlap == "stream" else end, wire.get((link, kind), 0))
                        wire[link, kind] = leave + busy
                        arrival = max(end, leave + busy)
                    there[kind, target, m] = arrival + p.latency[link]
    if any(position[s] < len(order) for s, order in enumerate(combination)):
        return None
    return max(time + update for time, update in zip(device, p.update, strict=True))
