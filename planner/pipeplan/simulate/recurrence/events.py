"""Step times where transfers share link resources: the event loop of `pipeplan.simulate.run` without action lists.

The rules are the same: replicas run as far as tensors have arrived, and when none can go on, the transfer that was
ready first takes its resources; ties go to the lower device, then to the earlier action. A replica's next action is a
forward, unless it holds as many micro-batches as it may. On a coupled pipeline it begins with those of the
stage's other replicas.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

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
    pipeline, many, homes = recurrence.pipeline, recurrence.micro_batches, recurrence.homes
    streams, blocks = pipeline.overlap is Overlap.STREAM, pipeline.overlap is Overlap.NONE
    coupled, devices_in_all = pipeline.coupled, pipeline.devices
    # Arrivals of tensors and gradients at each stage, by micro-batch; there at once at the first and the last stage.
    last = len(homes) - 1
    tensors = [[0 if s == 0 else UNKNOWN] * many for s in range(last + 1)]
    gradients = [[0 if s == last else UNKNOWN] * many for s in range(last + 1)]
    number: dict[str, int] = {}
    for channel in recurrence.sharing:
        for name in channel.transfer.resources:
            number.setdefault(name, len(number))
    down: list[Way | None] = [
        (_channels(recurrence, row, number), tensors[s + 1], homes[s + 1]) for s, row in enumerate(recurrence.onward)
    ]
    up: list[Way | None] = [
        (_channels(recurrence, row, number), gradients[s], homes[s]) for s, row in enumerate(recurrence.back)
    ]
    ways = list(zip([*down, None], [None, *up], strict=True))
    # Of each replica, what never changes.
    fixed = [
        (recurrence.counts[s], *ways[s], stage.duration(Kind.FORWARD), stage.duration(Kind.BACKWARD), tensor, gradient)
        for s, (stage, tensor, gradient) in enumerate(zip(pipeline.stages, tensors, gradients, strict=True))
    ]
    replicas = [
        (s, j, len(devices), len(range(j, many, len(devices))), device, *own)
        for s, (devices, own) in enumerate(zip(pipeline.placement, fixed, strict=True))
        for j, device in enumerate(devices)
    ]
    free = recurrence.of_replicas(begin)
    forwards, backwards = ([0] * len(replicas) for _ in range(2))
    awaited = [UNKNOWN] * len(replicas)  # 2 m for the tensor of micro-batch m, 2 m + 1 for its gradient
    link_free, resource_free = [0] * recurrence.links, [0] * len(number)
    movable = list(range(len(replicas)))
    # Replicas of a coupled stage that have reached their next action, the time of the last, and when each may begin.
    reached: list[list[int]] = [[] for _ in homes]
    latest, together = [0] * len(homes), [UNKNOWN] * len(replicas)
    # Queued transfers: readiness, device and position in one integer; what else is known of them.
    positions = 2 * many + 1
    queue: list[int] = []
    queued: dict[int, tuple[int, int, int, Way]] = {}
    while True:
        while movable:
            replica = movable.pop()
            s, j, width, share, device, most, onward, back, forward, backward, tensor, gradient = replicas[replica]
            now, f, b = free[replica], forwards[replica], backwards[replica]
            while True:
                # The next action, and its start.
                if f - b < most and f < share:
                    m = j + f * width
                    arrival, lasts, way, returned = tensor[m], forward, onward, 0
                elif b < share:
                    m = j + b * width
                    arrival, lasts, way, returned = gradient[m], backward, back, 1
                else:
                    break
                if arrival == UNKNOWN:
                    awaited[replica] = 2 * m + returned
                    break
                start = arrival if arrival > now else now
                if coupled and together[replica] == UNKNOWN:
                    reached[s].append(replica)
                    latest[s] = max(latest[s], start)
                    if len(reached[s]) < width:
                        break
                    for other in reached[s]:
                        together[other] = latest[s]
                    movable += [other for other in reached[s] if other != replica]
                    reached[s], latest[s] = [], 0
                if coupled:
                    start, together[replica] = together[replica], UNKNOWN
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
                    key = (ready * devices_in_all + device) * positions + f + b
                    heappush(queue, key)
                    queued[key] = replica, 2 * m + returned, now, way
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
                if awaited[other] == 2 * m + returned:
                    awaited[other] = UNKNOWN
                    movable.append(other)
            free[replica], forwards[replica], backwards[replica] = now, f, b
        if not queue:
            if any(reached):
                raise PlanError("replicas that begin their passes together would wait for ever; simulate the lists")
            return free
        key = heappop(queue)
        replica, action, end, (channels, arrivals, others) = queued.pop(key)
        m = action >> 1
        occupancy, latency, _, resources = channels[m % len(channels)]
        gone = key // (devices_in_all * positions)
        for resource in resources:
            if resource_free[resource] > gone:
                gone = resource_free[resource]
        gone += occupancy
        for resource in resources:
            resource_free[resource] = gone
        if streams and end > gone:
            gone = end
        if blocks:
            free[replica] = gone
            movable.append(replica)
        arrivals[m] = gone + latency
        other = others[m % len(others)]
        if awaited[other] == action:
            awaited[other] = UNKNOWN
            movable.append(other)


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
