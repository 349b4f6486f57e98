"""Event simulation of packets: ports that serve by priority, senders with a window, receivers that may go on early.

The network is a leaf-spine fabric, of which a packet passes four ports::

    host ── card ──▶ leaf ── up ──▶ spine ── down ──▶ leaf ── last ──▶ host

Times are whole nanoseconds. Of events at one time the kind decides, then the message, then the packet.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

ARRIVE, ACKNOWLEDGE, NOTICE, BEGIN, FINISH, SERVE = range(6)
"""Kinds of events, in the order in which those of one time are handled."""
Packet = tuple[int, int, tuple[int, ...], int]
"""Bytes, class, path, and when it was sent."""


def mixed(seed: int, a: int, b: int) -> int:
    """Return 31 pseudo-random bits of three numbers (finaliser of SplitMix64: Steele et al., OOPSLA 2014)."""
    x = (seed * 0x9E3779B97F4A7C15 + a * 0xD1B54A32D192ED03 + b * 0x8CB92BA72F3D8DD7) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x >> 33


@dataclass(frozen=True)
class Fabric:
    """``leaves`` switches with so many ``hosts`` each, joined by ``spines``.

    All links have one ``rate``, in bytes per second, and a bit travels ``delay`` nanoseconds along each; ``packet`` is
    the largest one, in bytes. Class 0 is served first. A switch drops a packet if with it more bytes would wait at the
    port than ``thresholds`` has for its class; what is in transmission does not wait. Cards drop nothing, as windows
    hold senders back. ``sprayed``: each packet takes a path of its own, drawn by a hash; otherwise each pair of hosts
    has one.
    """

    leaves: int
    hosts: int
    spines: int
    rate: int
    delay: int
    packet: int
    thresholds: tuple[int, ...]
    sprayed: bool = False

    @property
    def size(self) -> int:
        """Number of hosts."""
        return self.leaves * self.hosts

    @property
    def round_trip(self) -> int:
        """Nanoseconds from sending a packet over idle links to its acknowledgement."""
        return 4 * (self.wire(self.packet) + 2 * self.delay)

    def wire(self, size: int) -> int:
        """Return the nanoseconds in which so many bytes leave a port."""
        return -(-size * 10**9 // self.rate)

    def paths(self, source: int, target: int) -> list[tuple[int, ...]]:
        """Return the ports along each path between two hosts: numbers of cards, last links, links up and down."""
        here, there, last = source // self.hosts, target // self.hosts, self.size + target
        if here == there:
            return [(source, last)]
        up, down = 2 * self.size, 2 * self.size + self.leaves * self.spines
        return [(source, up + here * self.spines + s, down + s * self.leaves + there, last) for s in range(self.spines)]


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
    paths: list[tuple[int, ...]]
    window: int
    missing: int
    lost: deque[int] = field(default_factory=deque)
    fresh: int = 0
    flying: int = 0
    sends: int = 0
    credit: int = 0
    cut: int = -1
    received: int = 0
    used: int = 0
    begun: int = -1
    done: int = -1
    until: float = inf


class Simulation:
    """State of a run. The heap holds one event for each packet in motion and for each port where packets wait.

    An event is its time, its kind, and what its handler reads: a message and a packet by their numbers, or a port.
    """

    def __init__(self, fabric: Fabric, messages: Sequence[Message], repair: Repair, seed: int) -> None:
        self.fabric, self.repair, self.seed = fabric, repair, seed
        self.wire, self.back = cache(fabric.wire), 4 * fabric.delay  # headers go ahead of all packets
        self.most = -(-fabric.round_trip // self.wire(fabric.packet))  # packets on the way keep an idle path busy
        self.flows = [self._flow(number, message) for number, message in enumerate(messages)]
        self.followers = defaultdict[int, list[int]](list)
        for number, message in enumerate(messages):
            for before in {*message.after}:
                self.followers[before].append(number)
        self.free, self.waiting = defaultdict[int, int](int), defaultdict[int, int](int)  # of each port
        self.queues: dict[int, list[deque[tuple[int, int, int, Packet]]]] = defaultdict(
            lambda: [deque() for _ in fabric.thresholds]
        )
        self.heap: list[tuple[Any, ...]] = [(m.ready, BEGIN, n) for n, m in enumerate(messages) if not m.after]
        self.sent, self.dropped = 0, [0] * len(fabric.thresholds)

    def _flow(self, number: int, message: Message) -> Flow:
        if message.size < 1:
            raise ValueError(f"message {number} has {message.size} bytes; a message has at least 1")
        packets = -(-message.size // self.fabric.packet)
        paths = self.fabric.paths(message.source, message.target)
        if not self.fabric.sprayed:
            paths = [paths[mixed(self.seed, message.source, message.target) % len(paths)]]
        missing = packets - int(packets * message.tolerated)
        return Flow(message, number, packets, paths, self.most, missing)

    def run(self) -> Outcome:
        """Handle all events in turn."""
        heap, flows = self.heap, self.flows
        handlers = (self.arrive, self.hear, self.hear, self.begin, self.finish, self.serve)
        heapify(heap)
        while heap:
            now, kind, *subject = heappop(heap)
            handlers[kind](now, *subject)
        if any(flow.done < 0 for flow in flows):
            raise ValueError("messages wait for each other, so some never begin")
        times, used = ([flow.begun for flow in flows], [flow.done for flow in flows]), [flow.used for flow in flows]
        left_out = sum(self.bytes(flow, k) for flow in flows for k in (*range(flow.fresh, flow.packets), *flow.lost))
        return Outcome(*times, used, self.sent, sum(flow.received for flow in flows), left_out, self.dropped)

    def bytes(self, flow: Flow, k: int) -> int:
        """Return the bytes of a packet."""
        return min(self.fabric.packet, flow.message.size - k * self.fabric.packet)

    def begin(self, now: int, number: int) -> None:
        """Send the first window of a message."""
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
                k = flow.lost.popleft()
            paths, size = flow.paths, self.bytes(flow, k)
            path = paths[mixed(self.seed, flow.number, flow.sends) % len(paths)] if len(paths) > 1 else paths[0]
            flow.flying += 1
            flow.sends += 1
            self.sent += size
            self.arrive(now, flow.number, k, 0, (size, flow.message.priority, path, now))

    def arrive(self, now: int, number: int, k: int, hop: int, packet: Packet) -> None:
        """Take a packet to its target, or to its next port, which sends it on, keeps it or drops it."""
        size, priority, path, sent = packet
        if hop == len(path):
            flow = self.flows[number]
            flow.missing -= 1
            flow.received += size
            heappush(self.heap, (now + self.back, ACKNOWLEDGE, number, k))
            if not flow.missing:
                self.finish(now, number)
            return
        port = path[hop]
        waiting = self.waiting[port]
        idle = not waiting and self.free[port] <= now
        if idle or not hop or waiting + size <= self.fabric.thresholds[priority]:
            self.waiting[port] += size
            self.queues[port][priority].append((number, k, hop, packet))
            if idle:
                self.serve(now, port)
            elif not waiting:
                heappush(self.heap, (self.free[port], SERVE, port))
        else:
            self.dropped[priority] += size
            noticed = now + self.repair.wait if self.repair.fast else max(now, sent + self.repair.wait)
            heappush(self.heap, (noticed, NOTICE, number, k, sent))

    def serve(self, now: int, port: int) -> None:
        """Send the first packet of the first class that waits at a port."""
        number, k, hop, packet = next(queue for queue in self.queues[port] if queue).popleft()
        self.waiting[port] -= packet[0]
        self.free[port] = free = now + self.wire(packet[0])
        heappush(self.heap, (free + self.fabric.delay, ARRIVE, number, k, hop + 1, packet))
        if self.waiting[port]:
            heappush(self.heap, (free, SERVE, port))

    def finish(self, now: int, number: int) -> None:
        """Go on with what has arrived: begin what waited for a message, and tell its source to stop."""
        flow = self.flows[number]
        if flow.done >= 0:
            return
        flow.done, flow.used, flow.until = now, flow.received, now + self.back
        for follower in self.followers[number]:
            message = self.flows[follower].message
            if all(self.flows[before].done >= 0 for before in message.after):
                heappush(self.heap, (max(now, message.ready), BEGIN, follower))

    def hear(self, now: int, number: int, k: int, dropped: int | None = None) -> None:
        """Widen the window by a packet for each one that arrived; narrow it for a packet ``dropped``, sent then."""
        flow = self.flows[number]
        flow.flying -= 1
        if dropped is None:
            flow.credit += 1
            if flow.credit >= flow.window:
                flow.window, flow.credit = min(flow.window + 1, self.most), 0
        else:
            flow.lost.append(k)
            if dropped > flow.cut:
                flow.cut, flow.credit = now, 0
                flow.window = max(flow.window // 2, 1) if self.repair.fast else 1
        self.send(now, flow)


def simulate(fabric: Fabric, messages: Sequence[Message], repair: Repair, seed: int = 0) -> Outcome:
    """Return what happens to messages on a fabric; ``seed`` decides about paths."""
    return Simulation(fabric, messages, repair, seed).run()
