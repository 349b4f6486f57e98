"""Best-first branch and bound that closes a gap from two sides.

::

    bound        ─────────▲───────▲──▲────▲▲▲═══════════  optimum (or the requested gap)
    incumbent    ▼──────────▼───────────▼────═══════════

Open nodes lie on a heap, each with a lower bound on every solution below it. The node of the least bound is advanced
and returns a `Step`: the nodes that are then open below it, and a bound on every solution below it that none of these
nodes holds. Both count in the bound of the search, so no solution drops out of the proof unless a node states that
nothing is left. A node whose bound reaches the cutoff (the incumbent's value less the gap) is fathomed.
"""

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.common.signals import interruptible, received

OnProgress = Callable[[int | None, int, int], None]
"""Called with the incumbent's value (None before there is one), the bound, and the number of open nodes."""


class Bounded(Protocol):
    """An open node: ``bound`` in the objective's unit, ``rank`` to break ties (the least is advanced first)."""

    bound: int

    @property
    def rank(self) -> tuple[int, ...]:
        """Order among equal bounds."""
        ...


Node = TypeVar("Node", bound=Bounded)
Below = TypeVar("Below", bound=Bounded, covariant=True)
Solution = TypeVar("Solution")


@dataclass(frozen=True)
class Step(Generic[Below]):
    """Result of advancing a node: the part of its solutions that is still open, and a bound on the rest.

    Attributes
    ----------
    nodes : sequence of nodes
        Open from now on.
    rest : int or None
        No solution below the advanced node that lies below none of ``nodes`` is less than this. None if there is no
        such solution.
    """

    nodes: Sequence[Below]
    rest: int | None

    @staticmethod
    def split(nodes: Sequence[Below]) -> "Step[Below]":
        """Every solution below the node lies below one of these."""
        return Step(nodes, None)

    @staticmethod
    def leave(bound: int, nodes: Sequence[Below] = ()) -> "Step[Below]":
        """Some solutions below the node stay unexamined; none of them is less than ``bound``."""
        return Step(nodes, bound)

    @staticmethod
    def nothing() -> "Step[Below]":
        """No solution lies below the node."""
        return Step((), None)


@dataclass(eq=False)
class BranchAndBound(ABC, Generic[Node, Solution]):
    """The state of one search for a solution of least value.

    Attributes
    ----------
    limits : Limits
        Time and gap at which `run` stops.
    on_progress : callable
        See `OnProgress`.
    incumbent : Solution or None
        The best solution so far.
    value : int or None
        Value that better solutions are below: the incumbent's, or one known from elsewhere.
    stop : Stop
        Why `run` ended.
    opened : int
        Number of nodes that were advanced.
    deadline : float
        Value of `time.monotonic` at the time limit.
    """

    limits: Limits
    on_progress: OnProgress = lambda *_: None
    incumbent: Solution | None = None
    value: int | None = None
    stop: Stop = Stop.OPTIMALITY
    opened: int = 0
    deadline: float = field(init=False)
    _heap: list[tuple[int, tuple[int, ...], int, Node]] = field(default_factory=list, init=False)
    _pushed: int = field(default=0, init=False)
    _current: Node | None = field(default=None, init=False)
    _rest: int | None = field(default=None, init=False)

    NEWEST_FIRST: ClassVar[bool] = False
    """True if among equal bounds and ranks the node that was opened last comes first."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.time

    @abstractmethod
    def advance(self, node: Node) -> Step[Node]:
        """Examine some of the solutions below a node; return what remains of it."""

    @property
    def bound(self) -> int:
        """Lower bound on all solutions; 0 if nothing is known."""
        return min([*self._bounds(), *([] if self.value is None else [self.value])], default=0)

    @property
    def refuted(self) -> bool:
        """True if it is proved that there is no solution: nothing is open, and nothing was left unexamined."""
        return self.value is None and next(self._bounds(), None) is None

    @property
    def open(self) -> int:
        """Number of open nodes."""
        return len(self._heap)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def cutoff(self) -> int | None:
        """The least value that does not matter, because it closes the gap; None without a value. It never rises."""
        return None if self.value is None else self.value - int(self.limits.gap * self.value)

    def fathoms(self, bound: int) -> bool:
        """True if a node of this bound cannot contain a solution below the cutoff."""
        cutoff = self.cutoff
        return cutoff is not None and bound >= cutoff

    def improve(self, solution: Solution, value: int) -> None:
        """Make a solution the incumbent if it is better."""
        if self.value is None or value < self.value:
            self.incumbent, self.value = solution, value
            self._report()

    def push(self, node: Node) -> None:
        """Open a node, or fathom it."""
        if self.fathoms(node.bound):
            self._leave(node.bound)
        else:
            self._pushed += 1
            self._insert(node)

    def report(self, wall: float, backend: str) -> Report[Solution]:
        """What is known now that the search has ended, after so many seconds."""
        status, stop = Status.FEASIBLE, self.stop
        if self.value is None:
            status = Status.INFEASIBLE if self.refuted else Status.UNKNOWN
        elif self.bound == self.value:
            status, stop = Status.OPTIMAL, Stop.OPTIMALITY
        return Report(status, stop, self.value, self.bound, wall, backend, "1", self.limits.seed, self.incumbent)

    def run(self) -> None:
        """Search until the gap is closed, no node is open, the time is over, or a signal is received."""
        self.stop = Stop.OPTIMALITY
        try:
            while self.open and not self.fathoms(self.bound):
                if self.left <= 0:
                    self.stop = Stop.TIME
                    break
                if received():  # a signal whose exception a library caught
                    raise KeyboardInterrupt
                with interruptible():
                    self.step()
                self._report()
        except KeyboardInterrupt:
            self.stop = Stop.INTERRUPT
        if self.stop is Stop.OPTIMALITY and self.bound != self.value and not self.refuted:
            self.stop = Stop.GAP if self.fathoms(self.bound) else Stop.EXHAUSTED

    def step(self) -> None:
        """Advance the next node. If that is interrupted, the node's bound still counts."""
        node = self._next()
        if self.fathoms(node.bound):
            self._leave(node.bound)
        else:
            self.expand(node)

    def expand(self, node: Node) -> None:
        """Advance a node that is on no heap."""
        self._current = node
        step = self.advance(node)
        if step.rest is not None:
            self._leave(step.rest)
        self._current = None
        self.opened += 1
        for below in step.nodes:
            self.push(below)

    def _bounds(self) -> Iterator[int]:
        """Bounds of open and unexamined solutions; the least one is among them."""
        if self._heap:
            yield self._heap[0][0]
        if self._current is not None:
            yield self._current.bound
        if self._rest is not None:
            yield self._rest

    def _insert(self, node: Node) -> None:
        number = -self._pushed if self.NEWEST_FIRST else self._pushed
        heapq.heappush(self._heap, (node.bound, node.rank, number, node))

    def _next(self) -> Node:
        return heapq.heappop(self._heap)[-1]

    def _leave(self, bound: int) -> None:
        self._rest = bound if self._rest is None else min(self._rest, bound)

    def _report(self) -> None:
        self.on_progress(self.value, self.bound, self.open)
