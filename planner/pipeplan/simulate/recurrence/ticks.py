"""The recurrence over (tick, stage): a pipeline's numbers for it, and the walk through its ticks."""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, cycle, islice, pairwise
from math import lcm
from typing import NamedTuple

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.schedule import Kind
from pipeplan.simulate.recurrence.lanes import alike

Log = list[int]
"""Of one channel, for each transfer in turn: when it was ready, and when its link was free again."""
Sent = tuple[int, int, int, int, int, int, Log | None]
"""An action and its transfer: replica, nanoseconds, least nanoseconds from its start to its tensor's last byte, link,
occupancy, latency, log."""
Returned = tuple[int, int, int, int, int, int, Log | None, deque[int], deque[int]]
"""A backward: the same, the gradients that its stage waits for, and those that the stage before it waits for."""


class Channel(NamedTuple):
    """Transfers of one pair of replicas in one direction.

    ``link`` is the number of their link, ``shared`` the resources that other channels use too, ``device`` the sender.
    """

    transfer: Transfer
    link: int
    shared: tuple[str, ...]
    device: int


class Row(NamedTuple):
    """The transfers of one boundary in one direction, the number of the first one's link, and the sending stage."""

    transfers: Sequence[Transfer]
    first_link: int
    sender: int


class Recurrence:
    """A pipeline's numbers as the recurrence needs them.

    Attributes
    ----------
    counts : list of int
        k_s: micro-batches in flight on a replica of each stage, at most those that it has.
    period : int
        Number of ticks after which all pairs of replicas repeat; that of all ticks if there are too few.
    offsets : list of int
        e_s: ticks between a micro-batch's forward and its backward.
    homes : list of range
        Numbers of each stage's replicas.
    onward, back : list of Row
        By boundary, as many transfers as some micro-batch takes.
    links : int
        Number of channels, each of which has a link.
    shared : set of str
        Resources that several channels use.
    uneven : bool
        Replicas wait for others that may not be ready at the same time (`Pipeline.coupled`).
    """

    def __init__(self, pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> None:
        _check_form(pipeline, micro_batches, in_flight)
        self.pipeline, self.micro_batches = pipeline, micro_batches
        shares = [-(-micro_batches // r) for r in pipeline.replicas]
        self.counts = [min(k, share) for k, share in zip(in_flight, shares, strict=True)]
        self.offsets = _offsets(pipeline.replicas, micro_batches, self.counts, shares)
        self._rising = self.offsets[::-1]
        repeats = lcm(*pipeline.replicas)
        self.period = repeats if repeats <= micro_batches else 2 * micro_batches  # all ticks: some pairs are left out
        self.homes = [range(a, b) for a, b in pairwise(accumulate(pipeline.replicas, initial=0))]
        rows = [row[:micro_batches] for row in (*pipeline.transfers, *pipeline.returns)]
        first = list(accumulate(map(len, rows), initial=0))
        senders = [*range(len(pipeline.transfers)), *range(1, len(pipeline.returns) + 1)]
        both = list(map(Row, rows, first, senders))
        self.onward, self.back = both[: len(pipeline.transfers)], both[len(pipeline.transfers) :]
        self.links = first[-1]
        uses = Counter(chain.from_iterable(transfer.resources for transfer in chain.from_iterable(rows)))
        self.shared = {name for name, count in uses.items() if count > 1}
        self._shared_of: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.uneven = pipeline.coupled and not alike(pipeline, micro_batches)

    def channels(self, row: Row) -> Iterator[Channel]:
        """Yield the channels of a boundary in one direction."""
        devices, first = cycle(self.pipeline.placement[row.sender]), row.first_link
        for link, (transfer, device) in enumerate(zip(row.transfers, devices, strict=False), first):
            shared = self._shared_of.get(transfer.resources)
            if shared is None:
                shared = tuple(name for name in transfer.resources if name in self.shared)
                self._shared_of[transfer.resources] = shared
            yield Channel(transfer, link, shared, device)

    @cached_property
    def sharing(self) -> list[Channel]:
        """Channels that share a resource with others."""
        if not self.shared:
            return []
        every = chain.from_iterable(map(self.channels, (*self.onward, *self.back)))
        return [channel for channel in every if channel.shared]

    def of_replicas(self, times: Sequence[int]) -> list[int]:
        """Return the times of the stages, 0 by default, as times of their replicas."""
        return [time for time, own in zip(times or [0] * len(self.homes), self.homes, strict=True) for _ in own]

    def active(self, tick: int) -> tuple[bool, int, int]:
        """Return whether forwards run in a tick, and how many stages have ended and begun their backwards."""
        ended, begun = (bisect_right(self._rising, at) for at in (tick - self.micro_batches, tick))
        return tick < self.micro_batches, ended, begun


def _check_form(pipeline: Pipeline, micro_batches: int, in_flight: Sequence[int]) -> None:
    devices = [device for own in pipeline.placement for device in own]
    if len(set(devices)) < len(devices) or any(stage.slices > 1 for stage in pipeline.stages):
        raise PlanError("the recurrence is for one stage on each device and whole micro-batches; simulate the lists")
    if pipeline.coupled and any(micro_batches % r for r in pipeline.replicas):
        raise PlanError(f"{micro_batches} micro-batches are not equally many for all replicas that begin them together")
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
        self.link_free = [0] * (recurrence.links + 2)  # the last two: of tensors that no stage sends
        self.waiting = [deque[int]() for _ in recurrence.homes]
        self.logs: dict[int, Log] = {channel.link: [] for channel in recurrence.sharing} if log else {}
        self._forward_rows: dict[int, list[Sent]] = {}
        self._backward_rows: dict[int, list[Returned]] = {}
        # Entries of each stage by micro-batch, until all repeats.
        last, unused = len(recurrence.homes) - 1, deque[int](maxlen=0)
        self._down = [self._entries(s, Kind.FORWARD) for s in range(last + 1)]
        self._up = [
            [(*each, self.waiting[s], self.waiting[s - 1] if s else unused) for each in self._entries(s, Kind.BACKWARD)]
            for s in range(last, -1, -1)
        ]

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
        free, link_free = self.free, self.link_free
        arrival = 0
        for replica, lasts, least, link, occupancy, latency, log in forwards:
            start = free[replica]
            if arrival > start:
                start = arrival
            free[replica] = start + lasts
            time = (start if start > link_free[link] else link_free[link]) + occupancy
            link_free[link] = time
            arrival = (time if time > start + least else start + least) + latency
            if log is not None:
                log += start, time
        for replica, lasts, least, link, occupancy, latency, log, awaited, others in backwards:
            start = free[replica]
            arrival = awaited.popleft()
            if arrival > start:
                start = arrival
            free[replica] = start + lasts
            time = (start if start > link_free[link] else link_free[link]) + occupancy
            link_free[link] = time
            others.append((time if time > start + least else start + least) + latency)
            if log is not None:
                log += start, time

    def _forwards(self, tick: int) -> list[Sent]:
        """Return the forwards of a tick, first stage first."""
        place = tick % self._recurrence.period
        row = self._forward_rows.get(place)
        if row is None:
            row = self._forward_rows[place] = [own[tick % len(own)] for own in self._down]
        return row

    def _backwards(self, tick: int) -> list[Returned]:
        """Return the backwards of a tick of all stages, last stage first."""
        place = tick % self._recurrence.period
        row = self._backward_rows.get(place)
        if row is None:
            rows = zip(self._up, reversed(self._recurrence.offsets), strict=True)
            row = self._backward_rows[place] = [own[(tick - e) % len(own)] for own, e in rows]
        return row

    def _entries(self, s: int, kind: Kind) -> list[Sent]:
        """Return a stage's actions of one kind and their transfers, by micro-batch."""
        own, scale = self._recurrence, self._scale
        homes, lasts = own.homes[s], own.pipeline.stages[s].duration(kind)
        rows = own.onward[s : s + 1] if kind is Kind.FORWARD else own.back[max(s - 1, 0) : s]
        if not rows:  # nothing is sent
            link = own.links + (kind is Kind.BACKWARD)
            return [(home, scale * lasts, scale * lasts, link, 0, 0, None) for home in homes]
        streams, blocks = (own.pipeline.overlap is each for each in (Overlap.STREAM, Overlap.NONE))
        entries = []
        for m, transfer in enumerate(rows[0].transfers):
            busy, late, occupancy, least = lasts, transfer.latency, transfer.occupancy, lasts
            if blocks:  # the device waits while it sends, so its tensors never wait for their link
                busy, occupancy = lasts + occupancy, 0
            elif not transfer.resources:  # nothing is busy: the tensor only arrives later
                least = max(least, occupancy)
                late, occupancy = late + (0 if streams else occupancy), 0
            link = rows[0].first_link + m
            times = (scale * busy, scale * least, link, scale * occupancy, scale * late)
            entries.append((homes[m % len(homes)], *times, self.logs.get(link)))
        return entries
