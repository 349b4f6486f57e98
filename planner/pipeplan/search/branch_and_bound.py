"""Best-first search over a tree of questions that closes a gap from two sides.

::

    bound    ─────────▲───────▲──▲────▲▲▲═══════════  optimum (or the gap that was asked for)
    plan     ▼──────────▼───────────▼────═══════════

What is still open lies on a heap of nodes, each with a bound on all plans below it: shapes of the pipeline
(`search.nodes.device_groups`), and under each shape its schedule families (`search.nodes.family`). The node with
the least bound is advanced one step and returns a `Step`: the nodes that are then open below it, and a bound on every
plan below it that none of these nodes holds. The loop keeps both, so no plan drops out of the proof unless a node says
that nothing is left. A node whose bound reaches the incumbent is never opened, and a plan outside the question is never
the incumbent.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from pipeplan.core.cluster import Cluster
from pipeplan.search.evaluate import Judged
from pipeplan.search.pace import MOST, Pace, actions
from pipeplan.search.space.candidates import Candidate
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.signals import interruptible, received

Watch = Callable[[int | None, int, int], None]
"""Called with the incumbent's value (None before there is one), the bound, and the number of open nodes."""


SLACK, LEAST_SLACK = 0.05, 0.5
"""Part of the time limit, and seconds at least, beyond it in which the answer may be written."""


class Turn(Enum):
    """When a node is advanced. A good plan closes many nodes unseen, so some that find one quickly come early."""

    BY_BOUND = auto()
    UNTIL_A_PLAN = auto()  # early while there is no plan, by its bound afterwards
    EARLY = auto()  # before all that are not, whatever its bound


@dataclass(frozen=True)
class Step:
    """What is left of a node after it was advanced.

    Attributes
    ----------
    nodes : sequence of Node
        To be looked at.
    rest : int or None
        Nanoseconds: no plan below the advanced node that lies below none of ``nodes`` beats this. None if there is no
        such plan.
    """

    nodes: "Sequence[Node]"
    rest: int | None

    @staticmethod
    def split(nodes: "Sequence[Node]") -> "Step":
        """Every plan below the node lies below one of these."""
        return Step(nodes, None)

    @staticmethod
    def leave(bound: int, nodes: "Sequence[Node]" = ()) -> "Step":
        """No more will be learned about some plans, none of which beats ``bound``."""
        return Step(nodes, bound)

    @staticmethod
    def nothing() -> "Step":
        """No plan lies below the node."""
        return Step((), None)


class Node(Protocol):
    """Something that may still hold the best plan.

    ``bound`` is in nanoseconds; ``rank`` breaks ties: the least is advanced first.
    """

    bound: int

    @property
    def rank(self) -> tuple[int, ...]:
        """Among equal bounds."""
        ...

    @property
    def turn(self) -> Turn:
        """When to advance it."""
        return Turn.BY_BOUND

    def advance(self, prover: "Prover") -> Step:
        """Look at some of the plans below the node; what is left of it then."""
        ...


@dataclass
class Prover:
    """The state of one search.

    Attributes
    ----------
    outside : callable
        ``outside(judged)`` says why a plan is no answer to the question; None if it is one.
    incumbent : Judged or None
        The best plan so far.
    stop : Stop
        Why the search ended.
    opened : int
        How many nodes were advanced.
    pace : Pace
    unaffordable : float or None
        The fewest seconds that a plan takes which was left out as there was no time to simulate and to check it.
    """

    cluster: Cluster
    limits: Limits
    backend: str = "cpsat"
    watch: Watch = lambda *_: None
    outside: Callable[[Judged], str | None] = lambda _: None
    incumbent: Judged | None = None
    stop: Stop = Stop.OPTIMALITY
    opened: int = 0
    pace: Pace = field(default_factory=Pace)
    unaffordable: float | None = None
    _heap: list[tuple[int, tuple[int, ...], int, Node]] = field(default_factory=list)
    _early: list[tuple[tuple[int, ...], int, int, Node]] = field(default_factory=list)
    _postponed: list[Node] = field(default_factory=list)
    _current: Node | None = None
    _reserve: float = 0.0
    _pushed: int = 0
    _settled: int | None = None
    _offers: dict[str, Judged] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    @property
    def bound(self) -> int:
        """No plan of the searched space beats this."""
        known = [self._heap[0][0]] if self._heap else []
        known += [min(bound for _, bound, _, _ in self._early)] if self._early else []
        known += [node.bound for node in self._postponed]
        known += [self._current.bound] if self._current is not None else []
        known += [self._settled] if self._settled is not None else []
        known += [self.incumbent.value] if self.incumbent else []
        return min(known, default=0)

    @property
    def refuted(self) -> bool:
        """Whether it is proved that the space holds no plan."""
        left = self._heap or self._early or self._postponed or self._current is not None
        return self.incumbent is None and not left and self._settled is None

    @property
    def open(self) -> int:
        """Number of nodes."""
        return len(self._heap) + len(self._early)

    @property
    def left(self) -> float:
        """Seconds of this run: those behind it belong to the answer, and to ``reserve``."""
        finish = self.pace.finish(self.incumbent.candidate) if self.incumbent is not None else 0.0
        return self.rest - self._reserve - max(finish - self.slack, 0.0)

    @property
    def rest(self) -> float:
        """Seconds until the limit."""
        return self.limits.time - (time.monotonic() - self._began)

    @property
    def slack(self) -> float:
        """Seconds beyond the limit in which the answer may be written."""
        return max(SLACK * self.limits.time, LEAST_SLACK)

    def affords(self, candidate: Candidate) -> bool:
        """Whether a plan of this candidate can still be simulated, written and checked."""
        needed = self.pace.simulate(candidate) + self.pace.finish(candidate)
        if needed <= self.rest + self.slack and actions(candidate) <= MOST:
            return True
        self.unaffordable = min(needed, self.unaffordable or needed)
        return False

    @property
    def value(self) -> int | None:
        """The incumbent's, in nanoseconds."""
        return self.incumbent.value if self.incumbent else None

    def offer(self, judged: Judged) -> None:
        """A plan that somebody found; forgotten if it lies outside what was asked."""
        if self.outside(judged) is not None:
            return
        known = self._offers.get(judged.label)
        if known is None or judged.value < known.value:
            self._offers[judged.label] = judged
        if self.incumbent is None or judged.value < self.incumbent.value:
            self.incumbent = judged
            self._tell()

    def push(self, node: Node) -> None:
        """Open a node, unless it cannot hold anything better."""
        if self.incumbent is not None and node.bound >= self.incumbent.value:
            return
        self._pushed += 1
        if self._is_early(node):
            heapq.heappush(self._early, ((node.bound.bit_length(), *node.rank), node.bound, self._pushed, node))
        else:
            heapq.heappush(self._heap, (node.bound, node.rank, self._pushed, node))

    def postpone(self, node: Node) -> None:
        """Keep a node and its bound in mind until `recall`: all others have their turn first."""
        self._postponed.append(node)

    def recall(self) -> None:
        """Open all nodes that were postponed."""
        while self._postponed:
            self.push(self._postponed.pop())

    def run(self, reserve: float = 0.0) -> None:
        """Search until the gap is closed or the limits say stop, or until only ``reserve`` seconds are left."""
        self.stop, self._reserve = Stop.OPTIMALITY, reserve
        try:
            while self.open and not self._good_enough():
                if self.left <= 0:
                    self.stop = Stop.TIME
                    break
                if received():  # a signal that something on the way swallowed
                    raise KeyboardInterrupt
                with interruptible():
                    self._step(self._next())
                self._tell()
        except KeyboardInterrupt:
            self.stop = Stop.INTERRUPT
        if self.stop is Stop.OPTIMALITY and self.incumbent and self.bound < self.incumbent.value:
            self.stop = Stop.GAP if self._good_enough() else Stop.EXHAUSTED

    @property
    def tried(self) -> list[Judged]:
        """The best plan under each label, best first."""
        return sorted(self._offers.values(), key=lambda judged: judged.value)

    def ranking(self, most: int = 5) -> tuple[tuple[str, int], ...]:
        """The labels and values of the best of those."""
        return tuple((judged.label, judged.value) for judged in self.tried[:most])

    def _next(self) -> Node:
        while self._early:
            node = heapq.heappop(self._early)[-1]
            if self._is_early(node) or not self._heap:
                return node
            self.push(node)
        return heapq.heappop(self._heap)[-1]

    def _is_early(self, node: Node) -> bool:
        return node.turn is Turn.EARLY or (node.turn is Turn.UNTIL_A_PLAN and self.incumbent is None)

    def _step(self, node: Node) -> None:
        if self.incumbent is not None and node.bound >= self.incumbent.value:
            return
        self._current = node  # stays so if it is interrupted
        step = node.advance(self)
        if step.rest is not None:
            self._settled = step.rest if self._settled is None else min(self._settled, step.rest)
        self._current = None
        self.opened += 1
        for other in step.nodes:
            self.push(other)

    def _good_enough(self) -> bool:
        if self.incumbent is None:
            return False
        return self.incumbent.value - self.bound <= self.limits.gap * self.incumbent.value

    def _tell(self) -> None:
        self.watch(self.value, self.bound, self.open)
