"""Rings of replicas, and of the devices along an axis of a mesh: what sums and gathers take."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import ceil

from .costs import Groups
from .documents import Device, Link, Question


def occupancy(link: Link, size: int) -> int:
    """Nanoseconds that bytes keep a link busy."""
    return 0 if link.bandwidth is None else ceil(Fraction(size * 10**9, link.bandwidth))


def still_to_sum(moves: list[int], hidden: list[int], latency: int) -> int:
    """What is left to sum when the last backward ends, for the best way to cut the layers into buckets."""
    count, best = len(moves), None
    for cuts in range(2 ** max(count - 1, 0)):  # bit i: a bucket ends between layers i and i + 1
        now = free = -sum(hidden)
        bucket = 0
        for i in reversed(range(count)):  # the backward goes from the last layer to the first
            now += hidden[i]
            if moves[i]:
                ready, bucket = now, bucket + moves[i]
            if bucket and (i == 0 or cuts >> (i - 1) & 1):
                free, bucket = max(free, ready) + latency + bucket, 0
        best = free if best is None else min(best, free)
    return max(best or 0, 0)


def waits_in_turn(rows: Sequence[tuple[list[int], list[int]]], latency: int) -> list[int]:
    """What is left to sum of the stages of a device, each behind those above it, from the lowest stage on.

    ``rows``: for each stage what its layers take to sum, and what they hide. Stages sum in buckets as each alone does.
    """
    end: int | None = None
    waited, found = 0, []
    for k in reversed(range(len(rows))):
        before = sum(sum(hidden) for _, hidden in rows[:k])  # the last backwards of the stages below
        moves, hidden = rows[k]
        for ready, time in buckets(moves, hidden, latency):
            begin = -(ready + before) if end is None else max(end, -(ready + before))
            end = begin + time
        late = max(end or 0, 0)
        found.append(late - waited)
        waited = late
    return found[::-1]


def buckets(moves: list[int], hidden: list[int], latency: int) -> list[tuple[int, int]]:
    """How long before the end of the backward each bucket is ready, and its time; that of the last layers first.

    From each layer on they end as early as may be, of equally early ones with as many layers as may be in the first.
    """
    layers = [i for i, time in enumerate(moves) if time]
    best: dict[int, tuple[int, list[tuple[int, int]]]] = {len(moves): (-sum(hidden) - 1, [])}
    for k in reversed(layers):
        ready = sum(hidden[:k])
        for after in [*(i for i in layers if i > k), len(moves)]:
            end, rest = best[after]
            time = latency + sum(moves[k:after])
            own = (max(end, -ready) if rest else -ready) + time
            if k not in best or own <= best[k][0]:
                best[k] = own, [*rest, (ready, time)]
    return best[layers[0]][1] if layers else []


def wait_for_gathers(moves: list[int], beside: list[int], latency: int) -> int:
    """How much later a forward ends that waits for each layer's parameters, for the best way to cut the layers."""
    count, best = len(moves), None
    for cuts in range(2 ** max(count - 1, 0)):  # bit i: a bucket ends between layers i and i + 1
        there = late = first = 0
        for last in range(count):
            if last < count - 1 and not cuts >> last & 1:
                continue
            bucket = sum(moves[first : last + 1])
            there += bucket + latency if bucket else 0
            needed = next((i for i in range(first, last + 1) if moves[i]), last)
            ran = sum(beside[:needed])  # what the forward has done before it needs the bucket, if it never waits
            late = max(late, there - ran) if bucket else late
            first = last + 1
        best = late if best is None else min(best, late)
    return best or 0


@dataclass(frozen=True)
class Ring:
    """An all-reduce over its slowest link, or a half of it, by the algorithm that the link names.

    A ring has 2 (r − 1) rounds of ⌈size / r⌉ bytes, the others 2 ⌈log2 r⌉ rounds: halving moves (r − 1) / r of the
    bytes in each half, a tree all of them.
    """

    members: int
    link: Link
    halves: int = 2

    @property
    def rounds(self) -> int:
        """Of both halves, or of one."""
        return self.halves * (self.members - 1 if self.link.collective == "ring" else (self.members - 1).bit_length())

    def moves(self, size: int) -> int:
        """Nanoseconds without latency; what there is to move takes one at least."""
        if not size or not self.rounds:
            return 0
        link = self.link
        if link.bandwidth is not None and link.efficiency != 1:
            share = Fraction(str(link.efficiency))
            link = replace(link, bandwidth=max(round(link.bandwidth * share), 1))
        if link.collective == "ring":
            return max(self.rounds * occupancy(link, -(-size // self.members)), 1)
        sent = size if link.collective == "tree" else -(-size * (self.members - 1) // self.members)
        return max(self.halves * occupancy(link, sent), 1)

    def unit(self, size: int) -> int:
        """Nanoseconds of a gather, or a sum, of one layer; it is half an all-reduce."""
        link = self.link
        share = Fraction(str(link.efficiency)) * Fraction(str(link.unit_efficiency))
        half = Ring(self.members, replace(link, efficiency=float(share)), 1)
        return half.moves(size) + half.latency + link.unit_overhead if size and half.rounds else 0

    @property
    def latency(self) -> int:
        """Nanoseconds of latency in all rounds."""
        return self.rounds * self.link.latency


def slowest(links: Sequence[Link]) -> Link:
    """The link on which a collective of very many bytes takes longest, then of the longest latency; else the first."""
    rings = [Ring(2, replace(link, collective="ring"), 1) for link in links]
    times = [each.moves(2**41) for each in rings]  # of two members, each of whom sends 2**40 bytes once
    return max(zip(links, times, strict=True), key=lambda pair: (pair[1], pair[0].latency))[0]


def _nodes(group: Sequence[Device]) -> set[int]:
    return {device.node for device in group}


def ring(question: Question, groups: Groups, members: Sequence[int]) -> Ring:
    """The ring through all replicas of some stages, as fast as the slowest link that it passes.

    Rings that leave their nodes share the cards: at the busiest of its nodes, with the other stages that leave it too.
    They pass a link inside wherever they have several replicas.
    """
    own = set().union(*(_nodes(groups[s]) for s in members))
    count = sum(len(groups[s]) for s in members)
    if len(own) == 1:
        return Ring(count, question.links[own.pop()])
    there = {groups[s] for s in members}  # stages on the same devices sum one after the other
    others = Counter(
        node
        for group in dict.fromkeys(groups)
        if group not in there and len(_nodes(group)) > 1
        for node in _nodes(group)
    )
    network, users = question.between(groups[s][0].kind for s in members), 1 + max(others[node] for node in own)
    if network.bandwidth is not None:
        network = replace(network, bandwidth=max(network.bandwidth // users, 1))
    places = [device.node for s in members for device in groups[s]]
    inside = [question.links[node] for node in sorted(own) if places.count(node) > 1]
    return Ring(count, slowest([network, *inside]))


def sum_of_copies(question: Question, groups: Groups, members: Sequence[int], size: int) -> int:
    """Nanoseconds in which stages sum the gradients of weights that they share: no less than any two of them."""
    rows = [tuple(members), *combinations(members, 2)]
    rings = [ring(question, groups, row) for row in dict.fromkeys(rows)]
    return max(each.latency + each.moves(size) for each in rings)


def rings_of(sizes: Sequence[int], within: int) -> list[tuple[int, int]] | None:
    """For each axis how many rings pass a node's card at once, and members of one in a node; None if they are uneven.

    No ring passes a card if all of its members are in one node. Device by device, the last axis fastest.
    """
    found = []
    for axis in range(len(sizes)):
        rows: dict[tuple[int, ...], list[int]] = {}
        for device, place in enumerate(product(*map(range, sizes))):
            rows.setdefault((*place[:axis], *place[axis + 1 :]), []).append(device // within)
        counts = {row.count(node) for row in rows.values() for node in row}
        if len(counts) > 1:
            return None
        passing = sum(0 in row for row in rows.values() if len(set(row)) > 1)
        found.append((passing, counts.pop()))
    return found


def shapes_of(team: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of at most so many factors above 1, in order."""
    if team > 1 and axes:
        yield (team,)
        for first in range(2, team):
            if team % first == 0:
                yield from ((first, *rest) for rest in shapes_of(team // first, axes - 1))


def shared(link: Link, rings: int) -> Link:
    """The share of a link that each of several rings has."""
    if link.bandwidth is None:
        return link
    return replace(link, bandwidth=max(link.bandwidth // rings, 1))
