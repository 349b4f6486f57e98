"""Event loop of the simulation: it computes the times of every action and transfer.

Lanes advance as far as the known signals allow. A transfer whose link resources no other channel uses is timed at once.
The others queue by readiness, and the earliest is served when no lane can move. All later events wait, directly or not,
for an entry of the queue, so none can be ready before the earliest entry.

::

    lanes ──▶ transfer alone on its resources ──▶ arrival ──▶ lanes
      └─────▶ queue ──(no lane can move)──▶ the earliest ──▶ arrival ──▶ lanes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pipeplan.core.cluster import Overlap
from pipeplan.simulate.program import Program
from pipeplan.simulate.structure import NOTHING

UNKNOWN = -1
"""The time of an event that has not happened."""


@dataclass(frozen=True)
class Trace:
    """Times of events in nanoseconds, by number of the action; `UNKNOWN` where an event did not happen.

    Attributes
    ----------
    starts : list of int
    signals : list of int
        Time of each signal of the program: n ends, then n arrivals.
    left, gone : list of int
        Times at which the first and the last byte of an action's tensor left.
    predecessor : dict of int to int
        For each transfer that waited for a resource: the previous transfer on it (numbers of the sending actions).
    reached : list of int
        Number of actions that each lane ran.
    """

    starts: list[int]
    signals: list[int]
    left: list[int]
    gone: list[int]
    predecessor: dict[int, int]
    reached: list[int]


def run(program: Program, begin: Sequence[int] | None = None) -> Trace:
    """Run until no lane can move. Ties at a resource go to the lower device, then to list order.

    ``begin`` has a time for each device from which on it is free; by default the program's.
    """
    n = len(program.actions)
    starts, left, gone = [UNKNOWN] * n, [UNKNOWN] * n, [UNKNOWN] * n
    signals = [UNKNOWN] * (2 * n)
    predecessor: dict[int, int] = {}
    reached = [0] * len(program.lanes)
    free = [time for time in (program.begins if begin is None else begin) for _ in range(2)]
    count = 1 + max((resource for channel in program.channels for resource in channel.resources), default=-1)
    resource_free, last_on_resource = [0] * count, [NOTHING] * count
    waiting: dict[int, int] = {}  # signal -> the lane that waits for it
    sending: dict[int, int] = {}  # queued transfer -> the lane that it blocks
    queue: list[int] = []  # readiness * n + action: one integer that sorts by readiness, then by number
    movable = list(range(len(program.lanes)))

    streams, blocks = program.overlap is Overlap.STREAM, program.overlap is Overlap.NONE
    durations, needs, channel_of, channels = program.durations, program.needs, program.channel_of, program.channels
    collective_of = program.collective_of
    begun = [UNKNOWN] * len(program.collectives)
    latest = [0] * len(program.collectives)  # arrival time of the last replica so far
    arrived: list[list[int]] = [[] for _ in program.collectives]  # lanes

    def serve(i: int, ready: int) -> None:
        """Send the tensor of action i over its resources."""
        channel = channels[channel_of[i]]
        begin = ready
        for resource in channel.resources:
            if resource_free[resource] > begin:
                begin = resource_free[resource]
                predecessor[i] = last_on_resource[resource]
        end = begin + channel.occupancy
        for resource in channel.resources:
            resource_free[resource] = end
            last_on_resource[resource] = i
        if streams and signals[i] > end:
            end = signals[i]
        left[i], gone[i] = begin, end
        signals[n + i] = end + channel.latency
        if n + i in waiting:
            movable.append(waiting.pop(n + i))

    def join(collective: int, lane: int, now: int) -> int:
        """Record that a lane reaches a collective; return its start, or `UNKNOWN` while others are missing."""
        if begun[collective] == UNKNOWN:
            latest[collective] = max(latest[collective], now)
            arrived[collective].append(lane)
            if len(arrived[collective]) == len(program.collectives[collective]):
                begun[collective] = latest[collective]
                movable.extend(other for other in arrived[collective] if other != lane)
        return begun[collective]

    def advance(lane: int) -> None:
        """Run a lane's actions until one must wait."""
        order = program.lanes[lane]
        now = free[lane]
        for position in range(reached[lane], len(order)):
            i = order[position]
            # Start: when the lane is free and all signals are given, or with the other replicas of a collective.
            start = now
            for signal in needs[i]:
                given = signals[signal]
                if given == UNKNOWN:
                    waiting[signal] = lane
                    free[lane], reached[lane] = now, position
                    return
                if given > start:
                    start = given
            if collective_of[i] != NOTHING:
                start = join(collective_of[i], lane, start)
                if start == UNKNOWN:
                    free[lane], reached[lane] = now, position
                    return
            # Run the action and wake the lane that waits for its end.
            starts[i] = start
            signals[i] = now = start + durations[i]
            if i in waiting:
                movable.append(waiting.pop(i))
            if channel_of[i] == NOTHING:
                continue
            # Send its tensor at once, or queue it for a shared resource.
            ready = start if streams else now
            if channels[channel_of[i]].alone:
                serve(i, ready)
                now = gone[i] if blocks else now
            else:
                heappush(queue, ready * n + i)
                if blocks:
                    sending[i] = lane
                    reached[lane] = position + 1
                    return
        free[lane], reached[lane] = now, len(order)

    while movable or queue:
        while movable:
            advance(movable.pop())
        if queue:
            ready, i = divmod(heappop(queue), n)
            serve(i, ready)
            if i in sending:
                lane = sending.pop(i)
                free[lane] = gone[i]
                movable.append(lane)
    return Trace(starts, signals, left, gone, predecessor, reached)
