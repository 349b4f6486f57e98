"""Step times where transfers share link resources: the event loop of `pipeplan.simulate.run` without action lists.

The rules are the same: replicas run as far as tensors have arrived, and when none can go on, the transfer that was
ready first takes its resources; ties go to the lower device, then to the earlier action. A replica's next action is a
forward, unless it holds as many micro-batches as it may. On a coupled pipeline it begins with those of the
stage's other replicas.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Kind
from pipeplan.simulate.recurrence.ticks import Recurrence, Row

UNKNOWN = -1
"""The time of an arrival that has not happened; the micro-batch of a replica that waits for nothing."""

Channel = tuple[int, int, int, tuple[int, ...]]
"""Occupancy, latency, link or `UNKNOWN` if it keeps nothing busy, and its resources if another channel uses one."""
Way = tuple[list[Channel], list[int], range]
"""Channels from a stage to a neighbour, arrivals there by micro-batch, and the neighbour's replicas."""


def run_events(recurrence: Recurrence, begin: Sequence[int] = ()) -> list[int]:
    """Run all actions; return when each replica is free.

    ``begin`` has a time for each stage from which on its replicas are free; 0 by default.
    """
    events = _Events(recurrence, recurrence.of_replicas(begin))
    while True:
        while events.movable:
            events.advance(events.movable.pop())
        if not events.queue:
            if any(events.reached):
                raise PlanError("replicas that begin their passes together would wait for ever; simulate the lists")
            return events.free
        events.send_first()


class _Replica(NamedTuple):
    """What never changes of a replica.

    Attributes
    ----------
    stage, number, width, share, device : int
        It is number ``number`` of the ``width`` replicas of its stage, and has ``share`` micro-batches.
    most : int
        Micro-batches that it may hold.
    onward, back : Way or None
    forward, backward : int
        Nanoseconds of an action.
    tensors, gradients : list of int
        Arrivals at the stage, by micro-batch.
    """

    stage: int
    number: int
    width: int
    share: int
    device: int
    most: int
    onward: Way | None
    back: Way | None
    forward: int
    backward: int
    tensors: list[int]
    gradients: list[int]


class _Events:
    """State of the event loop.

    Attributes
    ----------
    free, forwards, backwards : list of int
        Of each replica: when it is free, and how many of both actions it has run.
    awaited : list of int
        2 m for the tensor of micro-batch m that a replica waits for, 2 m + 1 for its gradient.
    movable : list of int
        Replicas that may go on.
    reached : list of list of int
        Replicas of each coupled stage that have reached their next action; `latest` has the time of the last of them,
        and `together` when each replica may begin.
    queue, queued : list of int, dict
        Queued transfers: readiness, device and position in one integer; what else is known of them.
    """

    def __init__(self, recurrence: Recurrence, free: list[int]) -> None:
        pipeline, homes = recurrence.pipeline, recurrence.homes
        self.streams, self.blocks = pipeline.overlap is Overlap.STREAM, pipeline.overlap is Overlap.NONE
        self.coupled, self.devices = pipeline.coupled, pipeline.devices
        self.positions = 2 * recurrence.micro_batches + 1
        numbers: dict[str, int] = {}
        for channel in recurrence.sharing:
            for name in channel.transfer.resources:
                numbers.setdefault(name, len(numbers))
        self.replicas = _replicas(recurrence, numbers)
        count = len(self.replicas)
        self.free, self.forwards, self.backwards = free, [0] * count, [0] * count
        self.awaited, self.movable = [UNKNOWN] * count, list(range(count))
        self.reached: list[list[int]] = [[] for _ in homes]
        self.latest, self.together = [0] * len(homes), [UNKNOWN] * count
        self.link_free, self.resource_free = [0] * recurrence.links, [0] * len(numbers)
        self.queue: list[int] = []
        self.queued: dict[int, tuple[int, int, int, Way]] = {}

    def advance(self, replica: int) -> None:
        """Run the actions of a replica until it waits, or has run all."""
        s, j, width, share, device, most, onward, back, forward, backward, tensors, gradients = self.replicas[replica]
        now, f, b = self.free[replica], self.forwards[replica], self.backwards[replica]
        streams, blocks, coupled, link_free = self.streams, self.blocks, self.coupled, self.link_free
        while True:
            # The next action, and its start.
            if f - b < most and f < share:
                m = j + f * width
                arrival, lasts, way, returned = tensors[m], forward, onward, 0
            elif b < share:
                m = j + b * width
                arrival, lasts, way, returned = gradients[m], backward, back, 1
            else:
                break
            if arrival == UNKNOWN:
                self.awaited[replica] = 2 * m + returned
                break
            start = arrival if arrival > now else now
            if coupled:
                if self.together[replica] == UNKNOWN and not self._gather(replica, s, width, start):
                    break
                start, self.together[replica] = self.together[replica], UNKNOWN
            now = start + lasts
            if returned:
                b += 1
            else:
                f += 1
            if way is None:
                continue
            # Its tensor: sent at once over a link of its own, or queued for resources.
            channels, arrivals, others = way
            occupancy, latency, link, resources = channels[m % len(channels)]
            ready = start if streams else now
            if resources:
                key = (ready * self.devices + device) * self.positions + f + b
                heappush(self.queue, key)
                self.queued[key] = replica, 2 * m + returned, now, way
                if blocks:
                    break
                continue
            gone = ready
            if link != UNKNOWN and link_free[link] > gone:
                gone = link_free[link]
            gone += occupancy
            if link != UNKNOWN:
                link_free[link] = gone
            if streams and now > gone:
                gone = now
            if blocks:
                now = gone
            arrivals[m] = gone + latency
            other = others[m % len(others)]
            if self.awaited[other] == 2 * m + returned:
                self.awaited[other] = UNKNOWN
                self.movable.append(other)
        self.free[replica], self.forwards[replica], self.backwards[replica] = now, f, b

    def _gather(self, replica: int, stage: int, width: int, start: int) -> bool:
        """Return True if all replicas of a coupled stage have reached their next action, and let them begin it."""
        reached = self.reached[stage]
        reached.append(replica)
        self.latest[stage] = max(self.latest[stage], start)
        if len(reached) < width:
            return False
        for other in reached:
            self.together[other] = self.latest[stage]
        self.movable += [other for other in reached if other != replica]
        self.reached[stage], self.latest[stage] = [], 0
        return True

    def send_first(self) -> None:
        """Send the queued transfer that was ready first, as soon as its resources are free."""
        key = heappop(self.queue)
        replica, action, end, (channels, arrivals, others) = self.queued.pop(key)
        m = action >> 1
        occupancy, latency, _, resources = channels[m % len(channels)]
        gone = key // (self.devices * self.positions)
        for resource in resources:
            if self.resource_free[resource] > gone:
                gone = self.resource_free[resource]
        gone += occupancy
        for resource in resources:
            self.resource_free[resource] = gone
        if self.streams and end > gone:
            gone = end
        if self.blocks:
            self.free[replica] = gone
            self.movable.append(replica)
        arrivals[m] = gone + latency
        other = others[m % len(others)]
        if self.awaited[other] == action:
            self.awaited[other] = UNKNOWN
            self.movable.append(other)


def _replicas(recurrence: Recurrence, numbers: Mapping[str, int]) -> list[_Replica]:
    """The replicas of all stages; ``numbers`` has one for each resource that several channels use."""
    pipeline, many, homes = recurrence.pipeline, recurrence.micro_batches, recurrence.homes
    # Tensors of the first stage, and gradients of the last, are there at once.
    last = len(homes) - 1
    tensors = [[0 if s == 0 else UNKNOWN] * many for s in range(last + 1)]
    gradients = [[0 if s == last else UNKNOWN] * many for s in range(last + 1)]
    down: list[Way | None] = [
        (_channels(recurrence, row, numbers), tensors[s + 1], homes[s + 1]) for s, row in enumerate(recurrence.onward)
    ]
    up: list[Way | None] = [
        (_channels(recurrence, row, numbers), gradients[s], homes[s]) for s, row in enumerate(recurrence.back)
    ]
    found = []
    for s, (stage, devices, onward, back) in enumerate(
        zip(pipeline.stages, pipeline.placement, [*down, None], [None, *up], strict=True)
    ):
        times = stage.duration(Kind.FORWARD), stage.duration(Kind.BACKWARD)
        fixed = recurrence.counts[s], onward, back, *times, tensors[s], gradients[s]
        width = len(devices)
        found += [_Replica(s, j, width, len(range(j, many, width)), device, *fixed) for j, device in enumerate(devices)]
    return found


def _channels(recurrence: Recurrence, row: Row, number: Mapping[str, int]) -> list[Channel]:
    channels: list[Channel] = []
    numbers: dict[tuple[str, ...], tuple[int, ...]] = {}
    for transfer, link, shared, _ in recurrence.channels(row):
        names = transfer.resources
        resources = numbers.get(names) if shared else ()
        if resources is None:
            resources = numbers[names] = tuple(number[name] for name in dict.fromkeys(names))
        channels.append((transfer.occupancy, transfer.latency, link if names else UNKNOWN, resources))
    return channels
