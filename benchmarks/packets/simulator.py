"""Event simulation of packets: ports that serve by priority, senders with a window, receivers that may go on early.

Times are whole nanoseconds. Of events at one time the kind decides, then the message, then the packet.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from benchmarks.packets.fabric import UNLIMITED, Fabric, mixed

ARRIVE, ACKNOWLEDGE, NOTICE, BEGIN, FINISH, SERVE = range(6)
"""Kinds of events, in the order in which those of one time are handled."""
Event = tuple[Any, ...]
"""Its time, its kind, the numbers of a message and a packet or of a port, and what else its handler reads."""
Packet = tuple[int, int, tuple[int, ...], int]
"""Bytes, class, path, and when it was sent."""


@dataclass(frozen=True)
class Message:
    """Bytes from one host to another, from ``ready`` on, when its source has received all messages in ``after``.

    ``gradients`` are summed at the target, and only of these a part may be lost: the target goes on when all packets
    but the share ``tolerated`` are there, and at a ``deadline``, in nanoseconds behind the begin, with what is there.
    """

    source: int
    target: int
    size: int
    priority: int = 0
    ready: int = 0
    after: tuple[int, ...] = ()
    gradients: bool = False
    tolerated: float = 0.0
    deadline: int | None = None


@dataclass(frozen=True)
class Repair:
    """How a sender finds out that a packet was dropped.

    Fast: ``wait`` nanoseconds after the drop, since the switch passes on the header and the target asks again; the
    window is halved. Slow: by a timer, ``wait`` nanoseconds after sending; the window falls to one packet. Packets that
    were sent before the window last fell do not narrow it again.
    """

    fast: bool
    wait: int


@dataclass(frozen=True)
class Outcome:
    """When each message began and its target went on, its bytes used by then, and the bytes of the whole run.

    ``sent`` counts what was sent again, ``left_out`` never arrived, ``dropped`` are bytes of each class.
    """

    begun: list[int]
    done: list[int]
    used: list[int]
    sent: int
    arrived: int
    left_out: int
    dropped: list[int]


@dataclass(slots=True, eq=False)
class Flow:
    """A message under way, in packets: ``fresh`` was never sent, ``lost`` wait to be sent again.

    ``cut`` is when the window last fell, ``credit`` the acknowledgements since it last changed; nothing is sent behind
    ``until``.
    """

    message: Message
    number: int
    packets: int
    last: int
    paths: list[tuple[int, ...]]
    window: int
    waits: int
    followers: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    fresh: int = 0
    flying: int = 0
    sends: int = 0
    credit: int = 0
    cut: int = -1
    missing: int = 0
    received: int = 0
    used: int = 0
    begun: int = -1
    done: int = -1
    until: int = UNLIMITED


class Simulation:
    """State of a run. The heap holds one event for each packet in motion and for each port where packets wait."""

    def __init__(self, fabric: Fabric, messages: Sequence[Message], repair: Repair, seed: int) -> None:
        self.fabric, self.repair, self.seed = fabric, repair, seed
        self.full, self.most, self.delay, self.back = fabric.packet, fabric.window, fabric.delay, fabric.back
        self.flows = [self._flow(number, message) for number, message in enumerate(messages)]
        for number, message in enumerate(messages):
            for before in message.after:
                self.flows[before].followers.append(number)
        self.thresholds = fabric.limits()
        self.wire = {size: fabric.wire(size) for size in {self.full, *(flow.last for flow in self.flows)}}
        self.free, self.waiting = [0] * len(self.thresholds), [0] * len(self.thresholds)
        self.queues: list[list[deque[Event]]] = [[deque() for _ in levels] for levels in self.thresholds]
        self.heap: list[Event] = [(m.ready, BEGIN, n) for n, m in enumerate(messages) if not m.after]
        self.sent, self.dropped = 0, [0] * len(fabric.thresholds)

    def _flow(self, number: int, message: Message) -> Flow:
        if message.size < 1:
            raise ValueError(f"message {number} has {message.size} bytes; a message has at least 1")
        packets = -(-message.size // self.full)
        paths = self.fabric.paths(message.source, message.target)
        if not self.fabric.sprayed:
            paths = [paths[mixed(self.seed, message.source, message.target) % len(paths)]]
        last = message.size - (packets - 1) * self.full
        flow = Flow(message, number, packets, last, paths, self.most, len(message.after))
        flow.missing = packets - int(packets * message.tolerated)
        return flow

    def run(self) -> Outcome:
        """Handle all events in turn."""
        heap, flows = self.heap, self.flows
        handlers = (self.arrive, self.acknowledge, self.notice, self.begin, self.finish, self.serve)
        heapify(heap)
        while heap:
            event = heappop(heap)
            handlers[event[1]](event)
        if any(flow.done < 0 for flow in flows):
            raise ValueError("messages wait for each other, so some never begin")
        never = [(flow, k) for flow in flows for k in (*range(flow.fresh, flow.packets), *flow.lost)]
        return Outcome(
            begun=[flow.begun for flow in flows],
            done=[flow.done for flow in flows],
            used=[flow.used for flow in flows],
            sent=self.sent,
            arrived=sum(flow.received for flow in flows),
            left_out=sum(self.bytes(flow, k) for flow, k in never),
            dropped=self.dropped,
        )

    def bytes(self, flow: Flow, k: int) -> int:
        """Return the bytes of a packet."""
        return self.full if k < flow.packets - 1 else flow.last

    def begin(self, event: Event) -> None:
        """Send the first window of a message."""
        now, _, number = event
        flow = self.flows[number]
        flow.begun = now
        if flow.message.deadline is not None:
            heappush(self.heap, (now + flow.message.deadline, FINISH, number))
        self.send(now, flow)

    def send(self, now: int, flow: Flow) -> None:
        """Fill a message's window, with lost packets behind those that were never sent."""
        while flow.flying < flow.window and now <= flow.until and (flow.fresh < flow.packets or flow.lost):
            if flow.fresh < flow.packets:
                k = flow.fresh
                flow.fresh += 1
            else:
                k = flow.lost.pop(0)
            paths, size = flow.paths, self.bytes(flow, k)
            path = paths[mixed(self.seed, flow.number, flow.sends) % len(paths)] if len(paths) > 1 else paths[0]
            flow.flying += 1
            flow.sends += 1
            self.sent += size
            self.arrive((now, ARRIVE, flow.number, k, 0, (size, flow.message.priority, path, now)))

    def arrive(self, event: Event) -> None:
        """Take a packet to its target, or to its next port, which sends it on, keeps it or drops it."""
        now, _, number, k, hop, packet = event
        size, priority, path, sent = packet
        if hop == len(path):
            self.receive(now, self.flows[number], k, size)
            return
        port = path[hop]
        waiting = self.waiting[port]
        if not waiting and self.free[port] <= now:
            self.transmit(now, port, number, k, hop, packet)
        elif waiting + size <= self.thresholds[port][priority]:
            if not waiting:
                heappush(self.heap, (self.free[port], SERVE, port))
            self.waiting[port] = waiting + size
            self.queues[port][priority].append((number, k, hop, packet))
        else:
            self.dropped[priority] += size
            noticed = now + self.repair.wait if self.repair.fast else max(now, sent + self.repair.wait)
            heappush(self.heap, (noticed, NOTICE, number, k, sent))

    def transmit(self, now: int, port: int, number: int, k: int, hop: int, packet: Packet) -> None:
        """Send a packet along the link behind a port."""
        self.free[port] = free = now + self.wire[packet[0]]
        heappush(self.heap, (free + self.delay, ARRIVE, number, k, hop + 1, packet))

    def serve(self, event: Event) -> None:
        """Send the first packet of the first class that waits at a port."""
        now, _, port = event
        number, k, hop, packet = next(queue for queue in self.queues[port] if queue).popleft()
        self.waiting[port] -= packet[0]
        self.transmit(now, port, number, k, hop, packet)
        if self.waiting[port]:
            heappush(self.heap, (self.free[port], SERVE, port))

    def receive(self, now: int, flow: Flow, k: int, size: int) -> None:
        """Count a packet at its target."""
        flow.missing -= 1
        flow.received += size
        heappush(self.heap, (now + self.back, ACKNOWLEDGE, flow.number, k))
        if not flow.missing:
            self.finish((now, FINISH, flow.number))

    def finish(self, event: Event) -> None:
        """Go on with what has arrived: begin what waited for a message, and tell its source to stop."""
        now, flow = event[0], self.flows[event[2]]
        if flow.done >= 0:
            return
        flow.done, flow.used, flow.until = now, flow.received, now + self.back
        for follower in (self.flows[number] for number in flow.followers):
            follower.waits -= 1
            if not follower.waits:
                heappush(self.heap, (max(now, follower.message.ready), BEGIN, follower.number))

    def acknowledge(self, event: Event) -> None:
        """Widen the window by one packet for each window that arrived."""
        flow = self.flows[event[2]]
        flow.flying -= 1
        flow.credit += 1
        if flow.credit >= flow.window:
            flow.window, flow.credit = min(flow.window + 1, self.most), 0
        self.send(event[0], flow)

    def notice(self, event: Event) -> None:
        """Narrow the window, and keep a dropped packet for later."""
        now, _, number, k, sent = event
        flow = self.flows[number]
        flow.flying -= 1
        flow.lost.append(k)
        if sent > flow.cut:
            flow.cut, flow.credit = now, 0
            flow.window = max(flow.window // 2, 1) if self.repair.fast else 1
        self.send(now, flow)


def simulate(fabric: Fabric, messages: Sequence[Message], repair: Repair, seed: int = 0) -> Outcome:
    """Return what happens to messages on a fabric; ``seed`` decides about paths."""
    return Simulation(fabric, messages, repair, seed).run()
