"""The recurrence over (tick, stage): a pipeline's numbers for it, and the walk through its ticks."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from math import lcm

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.schedule import Kind

Log = list[int]
"""Of one channel, for each transfer in turn: when it was ready, and when its link was free again."""
Sent = tuple[int, int, int, int, int, int, Log | None]
"""An action and its transfer: replica, nanoseconds, least nanoseconds from its start to its tensor's last byte, link,
occupancy, latency, log."""
Returned = tuple[int, int, int, int, int, int, Log | None, deque[int], deque[int]]
"""A backward: the same, the gradients that its stage waits for, and those that the stage before it waits for."""


@dataclass(frozen=True)
class Channel:
    """Transfers of one pair of replicas in one direction.

    ``link`` is the number of their link, ``shared`` the resources that other channels use too, ``device`` the sender.
    """

    transfer: Transfer
    link: int
    shared: tuple[str, ...]
    device: int


class Recurrence:
    """A pipeline's numbers as the recurrence needs them.

    Attributes
    ----------
    counts : list of int
        k_s: micro-batches in flight on a replica of each stage, at most those that it has.
    period : int
        Number of micro-batches after which all pairs of replicas repeat.
    offsets : list of int
        e_s: ticks between a micro-batch's forward and its backward.
    homes : list of range
        Numbers of each stage's replicas.
    links : int
        Number of channels. Two more links stand for the tensors that the last and the first stage do not send.
    """

    def __init__(self, pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> None:
        _check_form(pipeline, in_flight)
        self.pipeline, self.micro_batches = pipeline, micro_batches
        shares = [-(-micro_batches // r) for r in pipeline.replicas]
        self.counts = [min(k, share) for k, share in zip(in_flight, shares, strict=True)]
        self.offsets = _offsets(pipeline.replicas, micro_batches, self.counts, shares)
        self._rising = self.offsets[::-1]
        self.period = lcm(*pipeline.replicas)
        self.homes = [range(a, b) for a, b in pairwise(accumulate(pipeline.replicas, initial=0))]
        uses: dict[str, int] = {}
        for transfer in chain(*pipeline.transfers, *pipeline.returns):
            for name in set(transfer.resources):
                uses[name] = uses.get(name, 0) + 1
        shared = {name for name, count in uses.items() if count > 1}
        self.links = 0
        self.onward = [self._channels(row, s, shared) for s, row in enumerate(pipeline.transfers)]
        self.back = [self._channels(row, s + 1, shared) for s, row in enumerate(pipeline.returns)]

    def _channels(self, row: Sequence[Transfer], sender: int, shared: set[str]) -> list[Channel]:
        devices, first = self.pipeline.placement[sender], self.links
        self.links += len(row)
        return [
            Channel(each, first + m, tuple(n for n in each.resources if n in shared), devices[m % len(devices)])
            for m, each in enumerate(row)
        ]

    @cached_property
    def shared(self) -> list[Channel]:
        """Channels whose link shares a resource with other channels."""
        return [channel for channel in chain(*self.onward, *self.back) if channel.shared]

    def active(self, tick: int) -> tuple[bool, int, int]:
        """Return whether forwards run in a tick, and how many stages have ended and begun their backwards."""
        ended, begun = (bisect_right(self._rising, at) for at in (tick - self.micro_batches, tick))
        return tick < self.micro_batches, ended, begun


def _check_form(pipeline: Pipeline, in_flight: Sequence[int]) -> None:
    devices = [device for own in pipeline.placement for device in own]
    if len(set(devices)) < len(devices) or any(stage.slices > 1 for stage in pipeline.stages):
        raise PlanError("the recurrence is for one stage on each device and whole micro-batches; simulate the lists")
    if len(in_flight) != len(pipeline.stages) or min(in_flight) < 1:
        raise PlanError(f"each of the {len(pipeline.stages)} stages needs a micro-batch in flight, not {in_flight}")


def _offsets(replicas: Sequence[int], micro_batches: int, counts: Sequence[int], shares: Sequence[int]) -> list[int]:
    """Return e_s of each stage."""
    if counts == shares:
        return [micro_batches] * len(shares)
    ahead = [(k - 1) * r for k, r in zip(counts, replicas, strict=True)]
    offsets = list(accumulate(reversed(ahead), max))[::-1]
    for s, (e, k, r, share) in enumerate(zip(offsets, counts, replicas, shares, strict=True)):
        if k < share and e >= k * r:
            raise PlanError(f"1F1B with {tuple(counts)} micro-batches in flight would wait for ever at stage {s}")
    return offsets


class Walk:
    """The state of a recurrence before a tick, and its way through the ticks. All times are multiplied by ``scale``.

    Attributes
    ----------
    free, link_free : list of int
        Times at which each replica and each link is free.
    waiting : list of deque of int
        Arrivals of gradients that each stage has not used, oldest first.
    logs : dict of int to list of int
        By number of the link, of channels that share resources; empty if ``log`` is false.
    """

    def __init__(self, recurrence: Recurrence, scale: int = 1, log: bool = False) -> None:
        self._recurrence, self._scale = recurrence, scale
        self.free = [0] * recurrence.homes[-1].stop
        self.link_free = [0] * (recurrence.links + 2)
        self.waiting = [deque[int]() for _ in recurrence.homes]
        self.logs: dict[int, Log] = {channel.link: [] for channel in recurrence.shared} if log else {}
        self._forward_rows: dict[int, list[Sent]] = {}
        self._backward_rows: dict[int, list[Returned]] = {}

    def flat(self) -> list[int]:
        """Return the state's times in one list."""
        return [*self.free, *self.link_free, *chain.from_iterable(self.waiting)]

    def put(self, times: Sequence[int], waiting: Sequence[int]) -> None:
        """Replace the state's times; ``waiting`` has the number of gradients that wait at each stage."""
        values = iter(times)
        self.free[:] = islice(values, len(self.free))
        self.link_free[:] = islice(values, len(self.link_free))
        for queue, count in zip(self.waiting, waiting, strict=True):
            queue.clear()
            queue.extend(islice(values, count))

    def run(self, begin: int, end: int) -> None:
        """Run the ticks ``begin`` … ``end`` − 1, in all of which the same stages are at work."""
        forwards, ended, begun = self._recurrence.active(begin)
        run = self._stream if self._recurrence.pipeline.overlap is Overlap.STREAM else self._copy
        for tick in range(begin, end):
            if begun and not ended:
                self.waiting[-1].append(0)  # the last stage has its gradients at once
            down = self._forwards(tick) if forwards else ()
            up = self._backwards(tick) if begun > ended else ()
            run(down, up if begun - ended == len(up) else up[ended:begun])

    def _copy(self, forwards: Sequence[Sent], backwards: Sequence[Returned]) -> None:
        """Run one tick where tensors leave when their action has ended."""
        free, link_free = self.free, self.link_free
        arrival = 0
        for replica, lasts, _, link, occupancy, latency, log in forwards:
            time = free[replica]
            if arrival > time:
                time = arrival
            free[replica] = time = time + lasts
            if link_free[link] > time:
                time = link_free[link]
            link_free[link] = time = time + occupancy
            arrival = time + latency
            if log is not None:
                log += free[replica], time
        for replica, lasts, _, link, occupancy, latency, log, awaited, others in backwards:
            time = free[replica]
            arrival = awaited.popleft()
            if arrival > time:
                time = arrival
            free[replica] = time = time + lasts
            if link_free[link] > time:
                time = link_free[link]
            link_free[link] = time = time + occupancy
            others.append(time + latency)
            if log is not None:
                log += free[replica], time

    def _stream(self, forwards: Sequence[Sent], backwards: Sequence[Returned]) -> None:
        """Run one tick where tensors leave while they are being made."""
        free = self.free
        arrival = 0
        for replica, lasts, least, link, occupancy, latency, log in forwards:
            start = max(free[replica], arrival)
            free[replica] = start + lasts
            arrival = self._last_byte(start, least, link, occupancy, log) + latency
        for replica, lasts, least, link, occupancy, latency, log, awaited, others in backwards:
            start = max(free[replica], awaited.popleft())
            free[replica] = start + lasts
            others.append(self._last_byte(start, least, link, occupancy, log) + latency)

    def _last_byte(self, start: int, least: int, link: int, occupancy: int, log: Log | None) -> int:
        """Send the tensor of an action that begins at ``start``; return the time at which its last byte has left."""
        time = max(start, self.link_free[link]) + occupancy
        self.link_free[link] = time
        if log is not None:
            log += start, time
        return max(time, start + least)

    def _forwards(self, tick: int) -> list[Sent]:
        """Return the forwards of a tick, first stage first."""
        own, place = self._recurrence, tick % self._recurrence.period
        row = self._forward_rows.get(place)
        if row is None:
            channels = [*(channels[tick % len(channels)] for channels in own.onward), None]
            row = self._forward_rows[place] = [
                self._sent(s, tick, stage.duration(Kind.FORWARD), channel or own.links)
                for s, (stage, channel) in enumerate(zip(own.pipeline.stages, channels, strict=True))
            ]
        return row

    def _backwards(self, tick: int) -> list[Returned]:
        """Return the backwards of a tick of all stages, last stage first."""
        own, place = self._recurrence, tick % self._recurrence.period
        row = self._backward_rows.get(place)
        if row is None:
            row = self._backward_rows[place] = []
            unused: deque[int] = deque(maxlen=0)
            for s in reversed(range(len(own.homes))):
                m = tick - own.offsets[s]
                channel = own.back[s - 1][m % len(own.back[s - 1])] if s else own.links + 1
                sent = self._sent(s, m, own.pipeline.stages[s].duration(Kind.BACKWARD), channel)
                row.append((*sent, self.waiting[s], self.waiting[s - 1] if s else unused))
        return row

    def _sent(self, stage: int, micro_batch: int, lasts: int, channel: Channel | int) -> Sent:
        """Return an action's entry; ``channel`` is the number of an unused link where nothing is sent."""
        homes, scale = self._recurrence.homes[stage], self._scale
        replica = homes[micro_batch % len(homes)]
        if isinstance(channel, int):
            return replica, scale * lasts, scale * lasts, channel, 0, 0, None
        transfer, overlap = channel.transfer, self._recurrence.pipeline.overlap
        occupancy, latency, least = transfer.occupancy, transfer.latency, lasts
        if overlap is Overlap.NONE:  # the device waits while it sends, so its tensors never wait for their link
            lasts, occupancy = lasts + occupancy, 0
        elif not transfer.resources:  # nothing is busy: the tensor only arrives later
            least = max(least, occupancy)
            latency, occupancy = latency + (0 if overlap is Overlap.STREAM else occupancy), 0
        times = (scale * lasts, scale * least, channel.link, scale * occupancy, scale * latency)
        return replica, *times, self.logs.get(channel.link)
