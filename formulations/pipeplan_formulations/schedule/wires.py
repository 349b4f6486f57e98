"""Transfers on wires: who is served next, and when."""

from collections import deque
from heapq import heappop, heappush

from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule, Row


class _Wires:
    """What both ways to serve have in common: which wires a transfer takes, and when they are free."""

    def __init__(self, problem: PipelineSchedule) -> None:
        self._problem = problem
        self._wires: dict[Row, list[int]] = {}
        for wire, rows in problem.carried.items():
            for row in rows:
                self._wires.setdefault(row, []).append(wire)
        self._free = dict.fromkeys(problem.carried, 0)

    def _take(self, op: Op, ready: int) -> tuple[Op, int]:
        """Occupy the wires as soon as all of them are free."""
        wires = self._wires[op.kind, op.stage]
        begin = max(ready, *(self._free[wire] for wire in wires))
        for wire in wires:
            self._free[wire] = begin + self._problem.duration(op)
        return op, begin


class FirstCome(_Wires):
    """By readiness; of those ready at once what the lower device sends goes first, then what it lists first."""

    def __init__(self, problem: PipelineSchedule, orders: Orders) -> None:
        super().__init__(problem)
        self._place: dict[Op, tuple[int, int]] = {}
        for d, order in enumerate(orders if problem.sent else ()):
            for n, op in enumerate(order):
                if (transfer := problem.transfer(op)) is not None:
                    self._place[transfer] = d, n
        self._alone = {row for row, wires in self._wires.items() if all(len(problem.carried[w]) == 1 for w in wires)}
        self._at_once: list[tuple[int, Op]] = []
        self._queue: list[tuple[int, tuple[int, int], Op]] = []

    def offer(self, op: Op, ready: int) -> None:
        """A transfer may begin from then on."""
        if (op.kind, op.stage) in self._alone:
            self._at_once.append((ready, op))
        else:
            heappush(self._queue, (ready, self._place[op], op))

    def serve(self) -> tuple[Op, int] | None:
        """The next one and its begin; to be asked when nothing else can happen before."""
        if self._at_once:
            ready, op = self._at_once.pop(0)
        elif self._queue:
            ready, _, op = heappop(self._queue)
        else:
            return None
        return self._take(op, ready)


class Listed(_Wires):
    """As a list of all transfers says."""

    def __init__(self, problem: PipelineSchedule, order: tuple[Op, ...]) -> None:
        super().__init__(problem)
        self._left = {wire: deque[Op]() for wire in problem.carried}
        for op in order:
            for wire in self._wires[op.kind, op.stage]:
                self._left[wire].append(op)
        self._ready: dict[Op, int] = {}
        self._look: list[Op] = []

    def offer(self, op: Op, ready: int) -> None:
        """A transfer may begin from then on."""
        self._ready[op] = ready
        self._look.append(op)

    def serve(self) -> tuple[Op, int] | None:
        """One that is first in the list of each of its wires, and its begin."""
        while self._look:
            op = self._look.pop()
            own = [self._left[wire] for wire in self._wires[op.kind, op.stage]]
            if op in self._ready and all(left[0] == op for left in own):
                for left in own:
                    left.popleft()
                self._look.extend(left[0] for left in own if left)
                return self._take(op, self._ready.pop(op))
        return None
