"""Small instances by exhaustive search: an oracle that shares nothing with the solvers' models.

Schedules are built by appending operations in the order of their starts. After some of them, all that the rest depends
on is how many of each kind and stage have run, and a few times:

    last         start of the latest operation; no later one starts before it
    free         when each lane and each wire is free
    waiting      when each operation and transfer that may come next has what it waits for
    made         end, ending included, of the stages that are done

and of each device with two lanes the I or W that still runs, whose memory a forward beside it cannot have yet.

Every schedule whose operations start as early as their order allows is built so: sorted by start, each finds its lane
or wires and its inputs as it would find them. Of two nodes with the same counts, and the same still running, one in
which none of these times is later dominates the other, since whatever follows the latter may follow the former and
starts no later (an operation waits for ``last``, too). Nodes therefore proceed in layers of equally many operations,
and in each layer only those that are not dominated remain, of which those go whose heads and tails say that they lead
to nothing better than the incumbent. A first pass keeps a few nodes a layer and finds the incumbent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.pareto import minimal
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule, Row
from pipeplan_formulations.schedule.objective import evaluate, feasible, listed
from pipeplan_formulations.schedule.precedence import tails

NAME = "exact"
KINDS = "FIWAG"
_BEFORE: dict[Kind, Kind] = {"I": "F", "W": "I"}
BEAM = 40
"""Nodes that the first pass keeps in a layer."""


Box = tuple[Kind, int, str]
"""What is noted for a row, of each micro-batch that is there: its input; for I the end of its F, where that has a lane
of its own; for a transfer when it may begin (ready), and when what it carries is made."""


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A beginning of a schedule. ``done`` counts by stage, the five kinds each; the rest is told above."""

    done: tuple[int, ...]
    last: int
    made: int
    free: tuple[int, ...]
    waiting: tuple[tuple[int, ...], ...]
    running: tuple[Row | None, ...]
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
    bracket = Bracket(partial(evaluate, problem), limits, progress)
    if hint is not None and feasible(problem, hint):
        bracket.offer(hint)
    stop = Stop.OPTIMALITY
    try:
        search = _Search(problem, bracket)
        search.run(BEAM)
        search.run(None)
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    if stop is Stop.OPTIMALITY:
        bracket.impossible = bracket.value is None
        bracket.raise_low(bracket.value or 0)
    return bracket.report(stop, NAME)


class _Search:
    def __init__(self, problem: PipelineSchedule, bracket: Bracket[Orders]) -> None:
        self._problem, self._bracket = problem, bracket
        self._tails = tails(problem)
        self._operations = len(problem.everything())
        self._machines = problem.machines
        self._rows = list(dict.fromkeys(row for rows in problem.machines for row in rows))
        self._homes = {row: [n for n, rows in enumerate(self._machines) if row in rows] for row in self._rows}
        self._source = {transfer: row for row, transfer in problem.sent.items()}
        awaited = {row: list(self._awaited(row)) for row in self._rows}
        made: list[Box] = [(*row, "made") for row in self._source]
        self._box = {box: n for n, box in enumerate(chain(*awaited.values(), made))}
        self._needs = {row: [self._box[box] for box in boxes] for row, boxes in awaited.items()}

    def run(self, width: int | None) -> None:
        """Layer after layer; with a width only that many nodes of least bound go on, and nothing is proved."""
        none, idle = (0,) * len(KINDS) * self._problem.stages, (None,) * self._problem.devices
        empty = _Node(none, 0, 0, (0,) * len(self._machines), ((),) * len(self._box), idle, 0, None, None)
        layer = [empty]
        for _ in range(self._operations):
            layer = self._next(layer)
            if width is not None:
                layer = sorted(layer, key=lambda node: node.bound)[:width]
            elif layer:
                self._bracket.raise_low(min(node.bound for node in layer))
        for node in layer:
            self._bracket.offer(_orders(self._problem, node))

    def _next(self, layer: list[_Node]) -> list[_Node]:
        groups: dict[tuple[tuple[int, ...], tuple[Row | None, ...]], list[_Node]] = {}
        value = self._bracket.value
        for node in layer:
            self._bracket.clock.check()
            for after in self._after(node):
                if value is None or after.bound < value:
                    groups.setdefault((after.done, after.running), []).append(after)
        check = self._bracket.clock.check
        kept = ((group, minimal([node.times for node in group], check)) for group in groups.values())
        return [group[i] for group, indices in kept for i in indices]

    def _awaited(self, row: Row) -> Iterator[Box]:
        """What a row waits for, besides its lane or wires."""
        kind, s = row
        if row in self._source:
            yield kind, s, "ready"
        if (kind == "F" and s) or (kind == "I" and s < self._problem.stages - 1):
            yield kind, s, "input"
        if kind == "I" and self._problem.has_lanes(self._problem.device[s]):
            yield kind, s, "forward"

    def _after(self, node: _Node) -> Iterator[_Node]:
        """Each operation and transfer that may come next, started as early as it can."""
        problem, m = self._problem, self._problem.micro_batches
        held = [0] * problem.devices
        for kind, s in self._rows:
            if kind in problem.delta:
                held[problem.device[s]] += problem.delta[kind][s] * node.done[_at(kind, s)]
        for kind, s in self._rows:
            i, ready = node.done[_at(kind, s)], [node.waiting[n] for n in self._needs[kind, s]]
            before = _BEFORE.get(kind)
            most = node.done[_at(before, s)] if before else m
            if i == most or not all(ready) or self._blocked(node, (kind, s)):
                continue
            begin = max(node.last, *(node.free[n] for n in self._homes[kind, s]), *(times[0] for times in ready))
            if kind == "F":
                d = problem.device[s]
                more = held[d] + problem.taken[s] - problem.room[d]
                if more > 0:
                    continue
                runs = node.running[d]
                if runs is not None and more - problem.delta[runs[0]][runs[1]] > 0:  # it frees that at its end only
                    begin = max(begin, node.free[self._homes[runs][0]])
            yield self._append(node, Op(kind, s, i), begin)

    def _blocked(self, node: _Node, row: Row) -> bool:
        """Whether its device waits until a tensor has left."""
        if self._problem.overlap != "none" or row in self._source:
            return False
        sent = (self._problem.sent.get(other) for other in self._machines[self._homes[row][0]])
        return any(node.waiting[self._box[*transfer, "ready"]] for transfer in sent if transfer is not None)

    def _append(self, node: _Node, op: Op, start: int) -> _Node:
        problem, (kind, s, _), row = self._problem, op, (op.kind, op.stage)
        end = start + problem.duration(op)
        waits, waiting = problem.overlap == "none", list(node.waiting)
        for n in (*self._needs[row], *([self._box[*row, "made"]] if row in self._source else [])):
            waiting[n] = waiting[n][1:]
        for box, time in self._given(op, node, start, end):
            waiting[self._box[box]] += (time,)
        done = list(node.done)
        done[_at(kind, s)] += 1
        # Nothing starts before `start` any more, so earlier times are as good as that one.
        free = [max(t, start) for t in node.free]
        for n in self._homes[row]:
            free[n] = end
        if waits and row in self._source:
            free[self._homes[self._source[row]][0]] = end
        rows = tuple(tuple(max(t, start) for t in times) for times in waiting)
        running = tuple(None if runs is None or free[self._homes[runs][0]] <= start else runs for runs in node.running)
        d = problem.device[s]
        if problem.has_lanes(d) and kind in ("I", "W") and end > start:
            running = (*running[:d], row, *running[d + 1 :])
        made, own = node.made, [(kind, s) for kind in problem.kinds(s)]
        if waits:
            own += [problem.sent[row] for row in own if row in problem.sent]
        if row in own and all(done[_at(*other)] == problem.micro_batches for other in own):
            made = max(made, end + problem.ending[s])
        bound = self._bound(done, made, free, rows, node.bound)
        return _Node(tuple(done), start, made, tuple(free), rows, running, bound, node, op)

    def _given(self, op: Op, node: _Node, start: int, end: int) -> Iterator[tuple[Box, int]]:
        """What others wait for, and when it is there."""
        problem, (kind, s, _), row = self._problem, op, (op.kind, op.stage)
        if kind == "F" and problem.has_lanes(problem.device[s]):
            yield ("I", s, "forward"), end
        if row in problem.sent:
            transfer = problem.sent[row]
            yield (*transfer, "ready"), start + problem.ready[transfer]
            yield (*transfer, "made"), end
            return
        if row in self._source:
            end = max(end, node.waiting[self._box[kind, s, "made"]][0])
        if kind in ("F", "A") and s < problem.stages - 1:
            yield ("F", s + 1, "input"), end + problem.lag[s]
        if kind in ("I", "G") and s:
            yield ("I", s - 1, "input"), end + problem.lag_back[s - 1]

    def _bound(
        self, done: list[int], made: int, free: list[int], waiting: tuple[tuple[int, ...], ...], parent: int
    ) -> int:
        """Least (5) of what begins like this: the rest of each lane or wire with its least tail, each row's with its
        own."""
        problem, m = self._problem, self._problem.micro_batches
        bound = max(parent, made)
        for n, rows in enumerate(self._machines):
            rest, tail = 0, None
            for kind, s in rows:
                left = m - done[_at(kind, s)]
                if not left:
                    continue
                work, after = left * problem.time[kind][s], self._tails[kind][s]
                begin = max([free[n], *(waiting[box][0] for box in self._needs[kind, s] if waiting[box])])
                bound = max(bound, begin + work + after)
                rest += work
                tail = after if tail is None else min(tail, after)
            if tail is not None:
                bound = max(bound, free[n] + rest + tail)
        return bound


def _at(kind: Kind, stage: int) -> int:
    return len(KINDS) * stage + KINDS.index(kind)


def _orders(problem: PipelineSchedule, node: _Node) -> Orders:
    """Those of a complete node."""
    begun: list[tuple[Op, int]] = []
    step: _Node | None = node
    while step is not None and step.op is not None:
        begun.append((step.op, step.last))
        step = step.parent
    return listed(problem, dict(reversed(begun)))
