"""Small instances by exhaustive search: an oracle that shares nothing with the solvers' models.

Schedules are built by appending operations in the order of their starts. After some of them, all that the rest depends
on is how many of each kind and stage have run, and a few times:

    last         start of the latest operation; no later one starts before it
    free_d       when device d is free
    waiting      when what has been sent arrives, for each operation that may use it
    made         end, ending included, of the stages that are done

Every schedule whose operations start as early as their order allows is built so: sorted by start, each finds its device
and its inputs as it would find them. Of two nodes with the same counts one in which none of these times is later
dominates the other, since whatever follows the latter may follow the former and starts no later (an operation waits for
``last``, too). Nodes therefore proceed in layers of equally many operations, and in each layer only those that are not
dominated remain, of which those go whose heads and tails say that they lead to nothing better than the incumbent. A
first pass keeps a few nodes a layer and finds the incumbent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeplan_formulations.clock import Clock, OutOfTimeError
from pipeplan_formulations.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.schedule.chains import tails
from pipeplan_formulations.schedule.evaluate import evaluate, feasible
from pipeplan_formulations.schedule.problem import Op, Orders, PipelineSchedule

NAME = "exact"
BEAM = 40
"""Nodes that the first pass keeps in a layer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A beginning of a schedule. ``done`` counts by stage, the three kinds each; the rest is told above."""

    done: tuple[int, ...]
    last: int
    made: int
    free: tuple[int, ...]
    waiting: tuple[tuple[int, ...], ...]  # at boundary s: forward in 2 s, back in 2 s + 1
    bound: int
    parent: "_Node | None"
    op: Op | None

    @property
    def times(self) -> tuple[int, ...]:
        return (self.last, self.made, *self.free, *(t for row in self.waiting for t in row))


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, progress: Progress | None = None
) -> Report[Orders]:
    """Minimise (5). Of the limits only the time counts; see `cpsat.solve` for the parameters."""
    clock = Clock(limits)
    search = _Search(problem, clock, progress)
    if hint is not None and feasible(problem, hint):
        search.offer(hint)
    stop = Stop.OPTIMALITY
    try:
        search.run(BEAM)
        search.run(None)
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    best, value, bound = search.best, search.value, search.bound
    if stop is Stop.OPTIMALITY:
        status = Status.INFEASIBLE if value is None else Status.OPTIMAL
        bound = bound if value is None else value
    else:
        status = Status.UNKNOWN if value is None else Status.FEASIBLE
        bound = bound if value is None else min(bound, value)
        if bound == value:
            status = Status.OPTIMAL
    return Report(status, stop, value, bound, clock.wall, NAME, "1", 0, best)


class _Search:
    def __init__(self, problem: PipelineSchedule, clock: Clock, progress: Progress | None) -> None:
        self._problem, self._clock, self._progress = problem, clock, progress
        self._tails = tails(problem)
        self._operations = sum(1 for d in range(problem.devices) for _ in problem.operations(d))
        self.best: Orders | None = None
        self.value: int | None = None
        self.bound = 0

    def offer(self, orders: Orders) -> None:
        value = evaluate(self._problem, orders)
        if value is not None and (self.value is None or value < self.value):
            self.best, self.value = orders, value
            self._tell()

    def run(self, width: int | None) -> None:
        """Layer after layer; with a width only that many nodes of least bound go on, and nothing is proved."""
        n = self._problem.stages
        empty = _Node((0,) * 3 * n, 0, 0, (0,) * self._problem.devices, ((),) * (2 * n - 2), 0, None, None)
        layer = [empty]
        for _ in range(self._operations):
            layer = self._next(layer)
            if width is not None:
                layer = sorted(layer, key=lambda node: node.bound)[:width]
            elif layer:
                self._raise(min(node.bound for node in layer))
        for node in layer:
            self.offer(_orders(self._problem, node))

    def _raise(self, bound: int) -> None:
        bound = bound if self.value is None else min(bound, self.value)
        if bound > self.bound:
            self.bound = bound
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.value, self.bound)

    def _next(self, layer: list[_Node]) -> list[_Node]:
        groups: dict[tuple[int, ...], list[_Node]] = {}
        for node in layer:
            self._clock.check()
            for after in self._after(node):
                if self.value is None or after.bound < self.value:
                    groups.setdefault(after.done, []).append(after)
        return [node for group in groups.values() for node in self._undominated(group)]

    def _undominated(self, nodes: list[_Node]) -> Iterator[_Node]:
        kept: list[tuple[int, ...]] = []
        for node in sorted(nodes, key=lambda node: node.times):
            self._clock.check()
            times = node.times
            if not any(all(a <= b for a, b in zip(other, times, strict=True)) for other in kept):
                kept.append(times)
                yield node

    def _after(self, node: _Node) -> Iterator[_Node]:
        """Each operation that may come next, started as early as it can."""
        problem, m = self._problem, self._problem.micro_batches
        held = [0] * problem.devices
        for s, d in enumerate(problem.device):
            forward, backward, weight = node.done[3 * s : 3 * s + 3]
            held[d] += problem.taken[s] * forward - problem.freed[s] * backward
            held[d] -= problem.freed_by_weight[s] * weight
        for s, d in enumerate(problem.device):
            forward, backward, weight = node.done[3 * s : 3 * s + 3]
            if forward < m and held[d] + problem.taken[s] <= problem.room[d]:
                if s == 0:
                    yield self._append(node, Op("F", s, forward), 0)
                elif node.waiting[2 * s - 2]:
                    yield self._append(node, Op("F", s, forward), node.waiting[2 * s - 2][0])
            if backward < forward:
                if s == problem.stages - 1:
                    yield self._append(node, Op("I", s, backward), 0)
                elif node.waiting[2 * s + 1]:
                    yield self._append(node, Op("I", s, backward), node.waiting[2 * s + 1][0])
            if problem.split[s] and weight < backward:
                yield self._append(node, Op("W", s, weight), 0)

    def _append(self, node: _Node, op: Op, arrival: int) -> _Node:
        problem, s = self._problem, op.stage
        d = problem.device[s]
        start = max(node.free[d], arrival, node.last)
        end = start + problem.duration(op)
        done = list(node.done)
        done[3 * s + "FIW".index(op.kind)] += 1
        waiting = list(node.waiting)
        if op.kind == "F":
            if s:
                waiting[2 * s - 2] = waiting[2 * s - 2][1:]
            if s < problem.stages - 1:
                waiting[2 * s] += (end + problem.lag[s],)
        elif op.kind == "I":
            if s < problem.stages - 1:
                waiting[2 * s + 1] = waiting[2 * s + 1][1:]
            if s:
                waiting[2 * s - 1] += (end + problem.lag_back[s - 1],)
        # Nothing starts before `start` any more, so earlier times are as good as that one.
        free = [max(t, start) for t in node.free]
        free[d] = end
        rows = tuple(tuple(max(t, start) for t in row) for row in waiting)
        made = node.made
        if all(done[3 * s + k] == problem.micro_batches for k in range(len(problem.kinds(s)))):
            made = max(made, end + problem.ending[s])
        return _Node(
            tuple(done), start, made, tuple(free), rows, self._bound(done, made, free, rows, node.bound), node, op
        )

    def _bound(
        self, done: list[int], made: int, free: list[int], waiting: tuple[tuple[int, ...], ...], parent: int
    ) -> int:
        """Least (5) of what begins like this: each device's rest with its least tail, each kind's rest with its own."""
        problem, m = self._problem, self._problem.micro_batches
        bound = max(parent, made)
        for d, stages in enumerate(problem.hosted):
            rest, tail = 0, None
            for s in stages:
                for k, kind in enumerate(problem.kinds(s)):
                    left = m - done[3 * s + k]
                    if not left:
                        continue
                    work, after = left * problem.time[kind][s], self._tails[kind][s]
                    begin = free[d]
                    if kind == "F" and s and waiting[2 * s - 2]:
                        begin = max(begin, waiting[2 * s - 2][0])
                    if kind == "I" and s < problem.stages - 1 and waiting[2 * s + 1]:
                        begin = max(begin, waiting[2 * s + 1][0])
                    bound = max(bound, begin + work + after)
                    rest += work
                    tail = after if tail is None else min(tail, after)
            if tail is not None:
                bound = max(bound, free[d] + rest + tail)
        return bound


def _orders(problem: PipelineSchedule, node: _Node) -> Orders:
    """The operations of a complete node, by device."""
    lists: list[list[Op]] = [[] for _ in range(problem.devices)]
    step: _Node | None = node
    while step is not None and step.op is not None:
        lists[problem.device[step.op.stage]].append(step.op)
        step = step.parent
    return tuple(tuple(reversed(order)) for order in lists)
