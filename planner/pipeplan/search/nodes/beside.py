"""Nodes that the process beside the search advances: every second one of the first, until the search wants them back.

::

    heap of the search    a  b  c  d  e  f  …          all of them bound the answer
                          │  ╰──│──╯──│──╯───▶ Batch ──▶ process: the least first, and those below
                          a  …  c     e                  │
                          ╰◀────┴─────┴────── Advanced ◀─╯ nodes that are left, plans, the least bound of what is closed

Both have the same spaces, so these are sent by their keys. What nodes keep for themselves is left behind, so only those
are shared to which it is worth little (`Node.shared`). The search wants a batch back after some seconds, but looks only
between two nodes of its own; so long the process goes on. What does not come back in time is advanced here after all.
"""

import io
import pickle
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeplan.costs.chain import Boundaries
from pipeplan.search.branch_and_bound import Node, PlanSearch
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.local_search import Improver, Message, Recall, Request, Workplace
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Key, Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.report import Limits

MOST = 8
"""Most nodes of a batch."""
SECONDS, LONGEST = 2.0, 6.0
"""Seconds of a batch that the search wants back, and after which the process advances no other node anyhow; the last
one has all the time for which it is waited for."""
PATIENCE, END = 15.0, 4.0
"""Seconds for which a batch is waited for, as the process may be busy with something long; and those at the end of the
search in which none is sent, and that of least bound is taken back: it is all that raises the bound."""
AFTER = 4.0
"""Seconds of search after which the first batch is sent: a process that has just begun has priced nothing yet."""
WHOLE = 60.0
"""Most seconds of a search by which the slices of time of a batch are measured: longer ones would not end in time."""
SETTLED = 0.05
"""Share of the time limit without a better plan after which late nodes are sent too."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> object | None:
        """The key of a space, or split and slices of the spaces of a way: the process has its own."""
        if isinstance(obj, Spaces):
            return obj.split, obj.model.slices
        return obj.key if isinstance(obj, Space) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, spaces: Spaces) -> None:
        super().__init__(io.BytesIO(data))
        self._spaces = spaces

    def persistent_load(self, pid: Any) -> Space | Spaces:
        """The space or spaces of these."""
        if len(pid) == 2:
            split, slices = pid
            return self._spaces.sliced.get(slices, self._spaces).teams[split]
        space = self._spaces.find(*pid)
        assert space is not None, "both have the same spaces"
        return space


def dumps(nodes: Iterable[Node]) -> bytes:
    """Return nodes as bytes, their spaces by key."""
    out = io.BytesIO()
    _Pickler(out).dump(list(nodes))
    return out.getvalue()


def loads(data: bytes, spaces: Spaces) -> list[Node]:
    """Return the nodes, of these spaces."""
    nodes: list[Node] = _Unpickler(data, spaces).load()
    return nodes


@dataclass(frozen=True)
class Advanced:
    """The answer to a batch of this number.

    Attributes
    ----------
    nodes : bytes
        Those that are left.
    rest : int or None
        The least bound of what was closed.
    parts : dict of str to int
        Bounds of parts, as in `PlanSearch`.
    plans : tuple of Message
        Plans that are better than the one known, each better than the one before.
    partitions : tuple of Partition
        The same of plans with several stages of a device.
    """

    number: int
    nodes: bytes
    rest: int | None
    parts: dict[str, int]
    plans: tuple[Message, ...]
    partitions: tuple["Partition", ...]


@dataclass(frozen=True)
class Partition:
    """Boundaries on the devices of a space, by key, at a micro-batch size; its plans are simulated again."""

    key: Key
    devices: tuple[tuple[int, ...], ...]
    size: int
    boundaries: Boundaries

    @staticmethod
    def of(candidate: Candidate, boundaries: Boundaries, spaces: Spaces) -> "Partition":
        """That of a candidate of super layers."""
        assert candidate.laid is not None
        devices = tuple(tuple(device.index for device in group) for group in candidate.chain.groups)
        space = spaces.of(candidate, candidate.laid.lengths)
        return Partition(space.key, devices, candidate.chain.micro_batch, boundaries)

    def submit(self, search: PlanSearch, spaces: Spaces) -> None:
        """Simulate it."""
        space = spaces.find(*self.key)
        assert space is not None, "both have the same spaces"
        groups = tuple(tuple(space.cluster.devices[index] for index in group) for group in self.devices)
        search.submit_all(space.candidates(groups, self.size), self.boundaries)


@dataclass(frozen=True)
class Batch(Request):
    """Nodes to be advanced, for plans below a value less a gap.

    Attributes
    ----------
    late : bool
        Whether late nodes are set aside.
    seconds : float
        Time after which no other node is advanced.
    until : float
        Value of `time.time` after which nobody waits for the answer.
    whole : float or None
        As in `PlanSearch`: slices of time depend on it. None where the nodes of many ways should each take little.
    """

    number: int
    nodes: bytes
    value: int
    gap: float
    late: bool
    seconds: float
    until: float
    whole: float | None = None

    def answer(self, place: Workplace) -> Advanced | None:
        """Advance them, the least bound first; plans are for the local search here too."""
        rest = self.until - time.time()
        if rest <= 0:
            return None
        seconds = min(self.seconds, rest)
        own = BatchSearch(Limits(rest, self.gap), cluster_of=place.spaces.cluster_of, place=place)
        own.outside, own.value, own.whole = place.spaces.outside, self.value, self.whole
        if not self.late:
            own.resume()
        for node in loads(self.nodes, place.spaces):
            own.push(node)
        while own.open and own.spent < (seconds if place.recalled < self.number or own.has_begun else SECONDS):
            own.step()
        # A node that the limit ended is closed with the bound it had: nobody waits for that any more.
        return own.answer(self.number) if own.rest > 0 else None


@dataclass(kw_only=True, eq=False)
class BatchSearch(PlanSearch):
    """The search of a batch; nodes below that are not shared are left to the search that has sent it."""

    place: Workplace
    plans: list[Message] = field(default_factory=list, init=False)
    partitions: list[Partition] = field(default_factory=list, init=False)
    _others: list[Node] = field(default_factory=list, init=False)

    @property
    def has_begun(self) -> bool:
        """Whether the next node has begun what it keeps for itself, and would begin again elsewhere."""
        return not self._early and self._heap[0][-1].begun

    def push(self, node: Node) -> None:
        """Open a node that is shared."""
        if node.shared or self.fathoms(node.bound):
            super().push(node)
        else:
            self._others.append(node)

    def improve(self, solution: EvaluatedPlan, value: int) -> None:
        """Keep a better plan for the answer, and climb from it."""
        better = self.value is None or value < self.value
        if better and solution.candidate.laid is None:
            self.plans.append(Message.of(solution))
            self.place.search.add(solution)
        super().improve(solution, value)

    def submit_all(self, candidates: Iterable[Candidate], boundaries: Boundaries) -> None:
        """Keep the partition of a better plan with several stages of a device."""
        every, before = list(candidates), self.value
        super().submit_all(every, boundaries)
        if self.value != before and every[0].laid is not None:
            self.partitions.append(Partition.of(every[0], boundaries, self.place.spaces))

    def is_new(self, tried: Hashable) -> bool:
        """Return True the first time, over all batches."""
        new = tried not in self.place.tried
        self.place.tried.add(tried)
        return new

    def answer(self, number: int) -> Advanced:
        """What has become of the nodes."""
        left = [*(entry[-1] for entry in (*self._heap, *self._early)), *self._deferred, *self._others]
        return Advanced(number, dumps(left), self._rest, self.parts, tuple(self.plans), tuple(self.partitions))


@dataclass
class Shared:
    """Nodes of a search that are with the process beside it."""

    improver: Improver
    spaces: Spaces
    away: list[Node] = field(default_factory=list)
    _number: int = 0
    _sent: float = 0.0
    _recalled: float | None = None

    @property
    def bound(self) -> int:
        """The least bound of the nodes that are away."""
        return min(node.bound for node in self.away)

    def exchange(self, search: PlanSearch) -> None:
        """Take back what is ready, and send the next nodes; wait for the answer if nothing else is open."""
        self._take(search)
        if not self.away:
            self._send(search)
        while self.away and search.least_open is None and search.left > 0:
            self._take(search, min(search.left, 1.0))

    def _take(self, search: PlanSearch, wait: float = 0.0) -> None:
        now = time.monotonic()
        if self.away and self._recalled is None and (search.least_open is None or now - self._sent > SECONDS):
            self.improver.asks(Recall(self._number))
            self._recalled = now
        for answer in self.improver.answers(wait):
            if isinstance(answer, Advanced):
                self._advanced(search, answer)
        if self.away and (not self.improver.running or self._is_due(search)):
            self._back(search, self.away)

    def _is_due(self, search: PlanSearch) -> bool:
        """Whether the batch is waited for no longer: for less time where nothing else is open."""
        now = time.monotonic()
        if search.least_open is None:
            return self._recalled is not None and now - self._recalled > 2 * SECONDS
        return now - self._sent > PATIENCE or (self.bound < search.least_open and search.rest < END)

    def _advanced(self, search: PlanSearch, answer: Advanced) -> None:
        for message in answer.plans[::-1]:
            plan = message.plan(self.spaces)
            if plan is not None:
                search.submit(plan)
        for partition in answer.partitions[-1:]:
            partition.submit(search, self.spaces)
        if self.away and answer.number == self._number:  # else they were taken back
            search.leave(answer.rest, answer.parts)
            self._back(search, loads(answer.nodes, self.spaces))

    def _back(self, search: PlanSearch, nodes: list[Node]) -> None:
        self.away = []
        for node in nodes:
            search.push(node)

    def _settled(self, search: PlanSearch) -> bool:
        """Whether all teams are open, or closed, and no better plan was found for a while: late nodes are opened then.

        A search that is alone finds better plans first, as these close most of what is late.
        """
        waiting = (each for each in self.spaces.openings if not each.done and not each.left)
        long = search.spent - search.improved > SETTLED * search.limits.time
        return long and all(search.fathoms(each.bound) for each in waiting)

    def _send(self, search: PlanSearch) -> None:
        if search.value is None or not self.improver.running:
            return
        if search.spent < AFTER or search.rest < SECONDS + END:
            return
        nodes = search.late_to_share(MOST) if self._settled(search) else []
        waits, nodes = search.waits and not nodes, nodes or search.to_share(MOST)
        if not nodes:
            return
        self._number += 1
        whole = None if self.spaces.openings else min(search.limits.time, WHOLE)
        how = search.value, search.limits.gap, waits, LONGEST, time.time() + PATIENCE, whole
        if self.improver.asks(Batch(self._number, dumps(nodes), *how)):
            self.away, self._sent, self._recalled = nodes, time.monotonic(), None
        else:
            self._back(search, nodes)
