"""Optimal orders of small pipelines by exhaustive search: an oracle independent of the solvers' models.

Schedules are built by appending operations in the order of their starts. After some of them, the rest depends only on
the numbers of operations of each kind and stage that have run, and on a few times:

    last         start of the latest operation; no later one starts before it
    free         time when each lane and each link resource is free
    waiting      times when the inputs of the operations and transfers that may come next are available
    made         end, ending included, of the stages that are done

For each device with two lanes the state also has the I or W that still runs, since a concurrent forward cannot use its
memory yet.

Every schedule whose operations start as early as their order allows is built in this way: sorted by start, each finds
its lane or link resources and its inputs in the same state. Take two nodes with the same counts and the same running
operations. A node in which none of these times is later dominates the other: any continuation of the latter is one of
the former and starts no later (an operation also waits for ``last``). Nodes therefore proceed in layers of equally many
operations. Each layer keeps the nodes that are not dominated and whose bound by heads and tails is below the incumbent.
A first pass keeps a few nodes per layer and finds the incumbent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.pareto import minimal
from pipeplan_formulations.common.report import Limits, Report, Stop
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule, Row
from pipeplan_formulations.schedule.objective import evaluate, listed
from pipeplan_formulations.schedule.precedence import tails

KINDS = "FIWAG"
_BEFORE: dict[Kind, Kind] = {"I": "F", "W": "I"}
BEAM = 40
"""Number of nodes that the first pass keeps per layer."""


Event = tuple[Kind, int, str]
"""Kind of time that is stored for a row, per micro-batch: "input", the arrival of its input; "forward", for I the end
of its F if that has a lane of its own; for a transfer "ready", the time when it may begin, and "made", the end of the
sending operation."""


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """Search node: a beginning of a schedule. ``done`` counts by stage, five kinds each; the module has the rest."""

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


def solve(problem: PipelineSchedule, limits: Limits) -> Report[Orders]:
    """Minimise the step time. Of the limits only the time is used; beyond it `OutOfTimeError` is raised."""
    bracket = Bracket(partial(evaluate, problem), limits)
    search = _Search(problem, bracket)
    search.run(BEAM)
    search.run(None)
    bracket.impossible = bracket.value is None
    bracket.raise_low(bracket.value or 0)
    return bracket.report(Stop.OPTIMALITY, "exhaustive")


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
        made: list[Event] = [(*row, "made") for row in self._source]
        self._event = {event: n for n, event in enumerate(chain(*awaited.values(), made))}
        self._needs = {row: [self._event[event] for event in events] for row, events in awaited.items()}

    def run(self, width: int | None) -> None:
        """Run all layers; with a width only that many nodes of least bound are kept, and nothing is proved."""
        none, idle = (0,) * len(KINDS) * self._problem.stages, (None,) * self._problem.devices
        empty = _Node(none, 0, 0, (0,) * len(self._machines), ((),) * len(self._event), idle, 0, None, None)
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

    def _awaited(self, row: Row) -> Iterator[Event]:
        """Events that a row waits for, besides its lane or link resources."""
        kind, s = row
        if row in self._source:
            yield kind, s, "ready"
        if (kind == "F" and s) or (kind == "I" and s < self._problem.stages - 1):
            yield kind, s, "input"
        if kind == "I" and self._problem.has_lanes(self._problem.device[s]):
            yield kind, s, "forward"

    def _after(self, node: _Node) -> Iterator[_Node]:
        """Successors of a node: each operation and transfer that may come next, started as early as possible."""
        # Bytes held by each device, by the counts.
        problem, m = self._problem, self._problem.micro_batches
        held = [0] * problem.devices
        for kind, s in self._rows:
            if kind in problem.delta:
                held[problem.device[s]] += problem.delta[kind][s] * node.done[_at(kind, s)]
        # Rows with a micro-batch left whose inputs are available; forwards also need memory.
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
                if runs is not None and more - problem.delta[runs[0]][runs[1]] > 0:  # freed only at its end
                    begin = max(begin, node.free[self._homes[runs][0]])
            yield self._append(node, Op(kind, s, i), begin)

    def _blocked(self, node: _Node, row: Row) -> bool:
        """True if the row's device waits until a tensor has been sent."""
        if self._problem.overlap != "none" or row in self._source:
            return False
        sent = (self._problem.sent.get(other) for other in self._machines[self._homes[row][0]])
        return any(node.waiting[self._event[*transfer, "ready"]] for transfer in sent if transfer is not None)

    def _append(self, node: _Node, op: Op, start: int) -> _Node:
        """Node with ``op`` appended at ``start``."""
        # Consume the events that the operation waited for, and add those that it creates.
        problem, (kind, s, _), row = self._problem, op, (op.kind, op.stage)
        end = start + problem.duration(op)
        waits, waiting = problem.overlap == "none", list(node.waiting)
        for n in (*self._needs[row], *([self._event[*row, "made"]] if row in self._source else [])):
            waiting[n] = waiting[n][1:]
        for event, time in self._given(op, node, start, end):
            waiting[self._event[event]] += (time,)
        done = list(node.done)
        done[_at(kind, s)] += 1
        # No later operation starts before `start`, so earlier times are raised to it: more nodes become comparable.
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
        # End of the stage if this was its last operation (without overlap, its last transfer).
        made, own = node.made, [(kind, s) for kind in problem.kinds(s)]
        if waits:
            own += [problem.sent[row] for row in own if row in problem.sent]
        if row in own and all(done[_at(*other)] == problem.micro_batches for other in own):
            made = max(made, end + problem.ending[s])
        bound = self._bound(done, made, free, rows, node.bound)
        return _Node(tuple(done), start, made, tuple(free), rows, running, bound, node, op)

    def _given(self, op: Op, node: _Node, start: int, end: int) -> Iterator[tuple[Event, int]]:
        """Events that ``op`` creates for other rows, and their times."""
        problem, (kind, s, _), row = self._problem, op, (op.kind, op.stage)
        if kind == "F" and problem.has_lanes(problem.device[s]):
            yield ("I", s, "forward"), end
        if row in problem.sent:
            transfer = problem.sent[row]
            yield (*transfer, "ready"), start + problem.ready[transfer]
            yield (*transfer, "made"), end
            return
        if row in self._source:
            end = max(end, node.waiting[self._event[kind, s, "made"]][0])
        if kind in ("F", "A") and s < problem.stages - 1:
            yield ("F", s + 1, "input"), end + problem.lag[s]
        if kind in ("I", "G") and s:
            yield ("I", s - 1, "input"), end + problem.lag_back[s - 1]

    def _bound(
        self, done: list[int], made: int, free: list[int], waiting: tuple[tuple[int, ...], ...], parent: int
    ) -> int:
        """Lower bound on a node: the rest of each lane or resource with its least tail, of each row with its own."""
        problem, m = self._problem, self._problem.micro_batches
        bound = max(parent, made)
        for n, rows in enumerate(self._machines):
            rest, tail = 0, None
            for kind, s in rows:
                left = m - done[_at(kind, s)]
                if not left:
                    continue
                work, after = left * problem.time[kind][s], self._tails[kind][s]
                begin = max([free[n], *(waiting[event][0] for event in self._needs[kind, s] if waiting[event])])
                bound = max(bound, begin + work + after)
                rest += work
                tail = after if tail is None else min(tail, after)
            if tail is not None:
                bound = max(bound, free[n] + rest + tail)
        return bound


def _at(kind: Kind, stage: int) -> int:
    return len(KINDS) * stage + KINDS.index(kind)


def _orders(problem: PipelineSchedule, node: _Node) -> Orders:
    """Orders of a complete node."""
    begun: list[tuple[Op, int]] = []
    step: _Node | None = node
    while step is not None and step.op is not None:
        begun.append((step.op, step.last))
        step = step.parent
    return listed(problem, dict(reversed(begun)))
