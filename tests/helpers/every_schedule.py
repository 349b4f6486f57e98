"""Oracle of tiny pipelines: the fastest of *all* schedules, by trying every order of every device.

It shares nothing with the simulator or the formulations. Rules, for stage s and micro-batch m:

::

    F(s, m) needs F(s − 1, m) and its tensor;  B(s, m) needs F(s, m), and B(s + 1, m) and its tensor;
    R(s) follows the last B(s, ·) on every replica of s and keeps them all busy, U(s) follows R(s), on each;
    where sums of ``layers`` overlap the last B(s, ·), R(s) is what is left of them with the best buckets;
    the step ends with the last U. Micro-batch m is at replica m mod r_s; each pair of replicas has a link.

    copy     F ████            the tensor takes its link when the action has ended and the link is free
             link    ▒▒▒▒··▶   (▒ occupancy, · latency)
    none     F ████▒▒▒▒··▶     the device itself is busy while it sends
    stream   F ████            the tensor takes its link when the action starts and the link is free,
             link ▒▒▒▒▒▒··▶    and is there a latency after both have ended
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import lcm

from helpers.buckets import Layers, least_left


@dataclass(frozen=True)
class TinyPipeline:
    """Times of stages (forward, backward, update, reduce) and links (send, send_back, latency); replicas of stages.

    ``unlike``: additional time on the links between an even and an odd replica. ``layers``: for each stage, layers
    whose sums overlap its last backward, with ``base`` for each bucket; in place of ``reduce``.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    latency: tuple[int, ...]
    overlap: str
    replicas: tuple[int, ...] = ()
    reduce: tuple[int, ...] = ()
    unlike: int = 0
    layers: tuple[Layers, ...] = ()
    base: int = 0

    def widths(self) -> tuple[int, ...]:
        """Replicas of each stage, one by default."""
        return self.replicas or (1,) * len(self.forward)

    def sums(self) -> Sequence[int]:
        """Time of each stage's reduction, or what the best buckets leave of it."""
        return self.reduce or [least_left(layers, self.base) for layers in self.layers] or [0] * len(self.forward)


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


def fastest(pipeline: TinyPipeline, micro_batches: int, in_flight: tuple[int, ...] | None = None) -> int:
    """The least step time over all combinations of orders.

    With ``in_flight`` only over those in which each device runs at most that many forwards before its first backward.
    """
    widths, reduce = pipeline.widths(), pipeline.sums()
    # m and m + turns run on the same replicas and are equal: a stage that has them alone may start them in order
    turns = lcm(*widths)
    in_order = widths.index(turns) if turns in widths else None
    choices = []
    for s, width in enumerate(widths):
        for replica in range(width):
            mine = range(replica, micro_batches, width)
            every = [tuple((kind, mine[m]) for kind, m in order) for order in orders(len(mine))]
            choices.append(
                [
                    o
                    for o in every
                    if (in_flight is None or forwards_first(o) <= in_flight[s])
                    and (s != in_order or begins(o) == [*mine])
                ]
            )
    times = (step_time(pipeline, combination, reduce) for combination in product(*choices))
    return min(time for time in times if time is not None)


def begins(order: Order) -> list[int]:
    """Micro-batches in the order of their forwards."""
    return [m for kind, m in order if kind == "F"]


def forwards_first(order: Order) -> int:
    """Number of forwards before the first backward."""
    return next((i for i, (kind, _) in enumerate(order) if kind == "B"), 0)


def step_time(p: TinyPipeline, combination: tuple[Order, ...], reduce: Sequence[int]) -> int | None:
    """Step time with every action as early as its order allows; None if the orders deadlock.

    ``combination``: one order per device, stage by stage, replica by replica. ``reduce``: `TinyPipeline.sums`.
    """
    widths = p.widths()
    homes = [(s, replica) for s, width in enumerate(widths) for replica in range(width)]
    last = len(widths) - 1
    there: dict[tuple[str, int, int], int] = {}  # arrival times of the tensors that (kind, stage, micro-batch) needs
    device = [0] * len(homes)
    free: dict[tuple[int, str, int, int], int] = {}
    position = [0] * len(homes)
    there.update({("F", 0, m): 0 for m in range(sum(len(order) for order in combination))})
    moved = True
    while moved:
        moved = False
        for d, (order, (s, replica)) in enumerate(zip(combination, homes, strict=True)):
            while position[d] < len(order):
                kind, m = order[position[d]]
                ready = there.get((kind, s, m))
                if ready is None:
                    break
                moved = True
                position[d] += 1
                start = max(device[d], ready)
                end = start + (p.forward[s] if kind == "F" else p.backward[s])
                device[d] = end
                if kind == "F" and s == last:
                    there["B", s, m] = end
                elif kind == "F" or s > 0:
                    target, link = (s + 1, s) if kind == "F" else (s - 1, s - 1)
                    other = m % widths[target]
                    busy = p.send[link] if kind == "F" else p.send_back[link]
                    busy += p.unlike * ((replica + other) % 2)
                    if p.overlap == "none":
                        arrival = device[d] = end + busy
                    else:
                        key = (link, kind, replica, other)
                        leave = max(start if p.overlap == "stream" else end, free.get(key, 0))
                        free[key] = leave + busy
                        arrival = max(end, leave + busy)
                    there[kind, target, m] = arrival + p.latency[link]
    if any(position[d] < len(order) for d, order in enumerate(combination)):
        return None
    ends = []
    for s in range(last + 1):
        done = max(time for time, (stage, _) in zip(device, homes, strict=True) if stage == s)
        ends.append(done + reduce[s] + p.update[s])
    return max(ends)
