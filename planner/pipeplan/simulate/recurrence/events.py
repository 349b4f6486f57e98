"""Step times where transfers share link resources: the event loop of `pipeplan.simulate.run` without action lists.

The rules are the same: replicas run as far as tensors have arrived, and when none can go on, the transfer that was
ready first takes its resources; ties go to the lower device, then to the earlier action. A replica's next action is a
forward, unless it holds as many micro-batches as it may.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Kind
from pipeplan.simulate.recurrence.ticks import Channel, Recurrence

UNKNOWN = -1
"""The time of an arrival that has not happened; the micro-batch of a replica that waits for nothing."""

Way = tuple[int, int, int, tuple[int, ...]]
"""A channel: occupancy, latency, its link or `UNKNOWN`, and its resources if another channel uses one of them."""


def run_events(recurrence: Recurrence) -> list[int]:
    """Run all actions; return when each replica is free."""
    pipeline, many = recurrence.pipeline, recurrence.micro_batches
    streams, blocks = pipeline.overlap is Overlap.STREAM, pipeline.overlap is Overlap.NONE
    names = sorted({name for channel in recurrence.shared for name in channel.transfer.resources})
    number = {name: i for i, name in enumerate(names)}

    # Arrivals of tensors and gradients at each stage, by micro-batch; there at once at the first and the last stage.
    last = len(recurrence.homes) - 1
    tensors = [[0 if s == 0 else UNKNOWN] * many for s in range(last + 1)]
    gradients = [[0 if s == last else UNKNOWN] * many for s in range(last + 1)]
    replicas = [
        (
            j,
            len(homes),
            recurrence.counts[s],
            len(range(j, many, len(homes))),
            stage.duration(Kind.FORWARD),
            stage.duration(Kind.BACKWARD),
            pipeline.placement[s][j],
            tensors[s],
            gradients[s],
            (_ways(recurrence.onward[s], number), tensors[s + 1], recurrence.homes[s + 1]) if s < last else None,
            (_ways(recurrence.back[s - 1], number), gradients[s - 1], recurrence.homes[s - 1]) if s else None,
        )
        for s, (stage, homes) in enumerate(zip(pipeline.stages, recurrence.homes, strict=True))
        for j in range(len(homes))
    ]
    free, forwards, backwards = ([0] * len(replicas) for _ in range(3))
    awaited = [UNKNOWN] * len(replicas)  # 2 m for the tensor of micro-batch m, 2 m + 1 for its gradient
    link_free, resource_free = [0] * recurrence.links, [0] * len(names)
    movable = list(range(len(replicas)))
    queue: list[tuple[int, int, int, int, int, int]] = []  # ready, device, position, replica, action, its end
    while True:
        while movable:
            replica = movable.pop()
            j, width, most, share, forward, backward, device, tensor, gradient, down, up = replicas[replica]
            now, f, b = free[replica], forwards[replica], backwards[replica]
            while True:
                # The next action, and its start.
                if f - b < most and f < share:
                    m = j + f * width
                    arrival, lasts, way, returned = tensor[m], forward, down, 0
                elif b < share:
                    m = j + b * width
                    arrival, lasts, way, returned = gradient[m], backward, up, 1
                else:
                    break
                if arrival == UNKNOWN:
                    awaited[replica] = 2 * m + returned
                    break
                start = arrival if arrival > now else now
                now = start + lasts
                if returned:
                    b += 1
                else:
                    f += 1
                if way is None:
                    continue
                # Its tensor: sent at once over a link of its own, or queued for resources.
                channels, arrivals, homes = way
                occupancy, latency, link, resources = channels[m % len(channels)]
                ready = start if streams else now
                if resources:
                    heappush(queue, (ready, device, f + b, replica, 2 * m + returned, now))
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
                other = homes[m % len(homes)]
                if awaited[other] == 2 * m + returned:
                    awaited[other] = UNKNOWN
                    movable.append(other)
            free[replica], forwards[replica], backwards[replica] = now, f, b
        if not queue:
            return free
        ready, _, _, replica, action, end = heappop(queue)
        m, returned = divmod(action, 2)
        *_, down, up = replicas[replica]
        way = up if returned else down
        assert way is not None
        channels, arrivals, homes = way
        occupancy, latency, _, resources = channels[m % len(channels)]
        gone = ready
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
        other = homes[m % len(homes)]
        if awaited[other] == action:
            awaited[other] = UNKNOWN
            movable.append(other)


def _ways(channels: Sequence[Channel], number: Mapping[str, int]) -> list[Way]:
    ways = []
    for channel in channels:
        transfer = channel.transfer
        link = channel.link if transfer.resources else UNKNOWN
        resources = tuple(number[name] for name in dict.fromkeys(transfer.resources)) if channel.shared else ()
        ways.append((transfer.occupancy, transfer.latency, link, resources))
    return ways
