"""Linear model for small instances: a second proof that shares only the start and the bounds with CP-SAT.

The mixed-integer programme has a start A ≥ 0 for every operation and every transfer. For each pair on one lane or link
resource that no chain orders, a binary y is 1 if the first of them comes first. For a forward and an operation that may
run concurrently, y is 1 only if the latter has ended before the forward starts.

(a)  `_chains`: inputs, transfers, the order 0, 1, 2, … of one kind and stage, and T ≥ last end + ending of each stage.
(b)  `_apart`: A_b ≥ A_a + time_a − G (1 − y_{ab}) and A_a ≥ A_b + time_b − G y_{ab}, with G the largest violation;
     only the first of both for concurrent operations. Ends include the tensors that a device waits for.
(c)  `_memory`: for every forward, the bytes of the operations that y puts before it, and its own, are at most the room.
(d)  `_implied`: of Y_i and Y_{i+1} of one kind and stage the second comes before X only if the first does; and a lane
     or resource takes its least head, its work and its least tail. CBC would find neither by itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import combinations, permutations

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.model import Expression, LinearModel, MipSolver, sum_of
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import makespan, starts
from pipeplan_formulations.schedule.precedence import heads, precedes, tails
from pipeplan_formulations.schedule.start import SHARE, ScaledProblem, open_bracket, scaled, start


@dataclass(frozen=True)
class ByRows:
    """Back end that builds the linear model and calls a solver."""

    solver: MipSolver

    def solve(
        self, problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, on_progress: Progress | None = None
    ) -> Report[Orders]:
        """Minimise the step time. The solver gets the value of the start as a bound, not the start itself."""
        bracket, solver = open_bracket(problem, limits, on_progress), self.solver
        if bracket.impossible:
            return bracket.report(Stop.OPTIMALITY, solver.name, solver.version())
        try:
            bracket.raise_low(lower_bound(problem))
            start(problem, bracket, hint, SHARE * limits.time)
            stop = Stop.GAP if bracket.closed else _search(scaled(problem), bracket, solver)
        except KeyboardInterrupt:
            stop = Stop.INTERRUPT
        return bracket.report(stop, solver.name, solver.version())


def _search(form: ScaledProblem, bracket: Bracket[Orders], solver: MipSolver) -> Stop:
    begun = starts(form.problem, bracket.best) if bracket.best is not None else None
    program = _Program(form.problem, form.problem.largest if begun is None else makespan(form.problem, begun))
    if bracket.clock.left <= 0:
        return Stop.TIME
    answer = solver.solve(program.model, replace(bracket.limits, time=bracket.clock.left))
    if answer.status is Status.INFEASIBLE:  # an error, since the start is a solution of the programme
        return Stop.ERROR
    if answer.point is not None:
        point = list(map(round, answer.point))
        bracket.offer(_orders(form.problem, lambda a, b: program.ends_before(a, b).value(point) > 0))
    bracket.raise_low(form.bound(answer.bound))
    return answer.stop


class _Program:
    """Linear model of a problem whose step takes at most ``high``."""

    def __init__(self, problem: PipelineSchedule, high: int) -> None:
        # Starts within the windows; an order variable for each pair on one lane or resource, or of two lanes.
        self.problem, self.model = problem, LinearModel()
        self.least, self.after = heads(problem), tails(problem)
        self.begins: dict[Op, int] = {}
        self.first: dict[tuple[Op, Op], int] = {}
        for op in problem.everything():
            low = self.least[op.kind][op.stage]
            latest = high - self.after[op.kind][op.stage] - problem.duration(op)
            self.begins[op] = self.model.time(low, max(low, latest))
        apart = (pair for rows in problem.machines for pair in combinations(problem.all_of(rows), 2))
        beside = (pair for d in range(problem.devices) if problem.has_lanes(d) for pair in _beside(problem, d))
        for a, b in (*apart, *beside):
            if (a, b) not in self.first and not precedes(problem, a, b) and not precedes(problem, b, a):
                self.first[a, b] = self.model.boolean()
        self.objective = self.model.time(0, high)
        self.model.minimize(self.objective)
        self._chains()
        self._apart()
        self._memory()
        self._implied()

    def ends_before(self, a: Op, b: Op) -> Expression:
        """Expression that is 1 if a ends before b begins, otherwise 0."""
        if (a, b) in self.first:
            return Expression({self.first[a, b]: 1})
        if (b, a) in self.first:
            return Expression({self.first[b, a]: -1}, 1)
        return Expression({}, int(precedes(self.problem, a, b)))

    def _end(self, op: Op) -> Expression:
        """End of an operation, or of the transfer that its device waits for."""
        sent = self.problem.transfer(op) if self.problem.overlap == "none" else None
        last = sent or op
        return Expression({self.begins[last]: 1}, self.problem.duration(last))

    def _follows(self, b: Op, a: Op, lag: int = 0, when: tuple[int, ...] = ()) -> None:
        """Add: b begins no sooner than ``lag`` after the end of a."""
        self.model.at_least(Expression({self.begins[b]: 1}) - self._end(a), lag, when)

    def _needs(self, b: Op, a: Op, lag: int) -> None:
        """Add: b needs the tensor of a."""
        self._follows(b, a, lag)
        sent = self.problem.transfer(a)
        if sent is not None:
            self._follows(b, sent, lag)

    def _chains(self) -> None:
        """Add (a)."""
        problem = self.problem
        for op, begin in self.begins.items():
            kind, s, i = op
            if i:
                self._follows(op, Op(kind, s, i - 1))
            if kind == "F" and s:
                self._needs(op, Op("F", s - 1, i), problem.lag[s - 1])
            if kind == "I":
                self._follows(op, Op("F", s, i))
                if s < problem.stages - 1:
                    self._needs(op, Op("I", s + 1, i), problem.lag_back[s])
            if kind == "W":
                self._follows(op, Op("I", s, i))
            sent = problem.transfer(op)
            if sent is not None:
                self.model.at_least({self.begins[sent]: 1, begin: -1}, problem.ready[sent.kind, s])
            if i == problem.micro_batches - 1 and kind in ("F", "I", "W"):
                self.model.at_least(Expression({self.objective: 1}) - self._end(op), problem.ending[s])

    def _apart(self) -> None:
        """Add (b)."""
        for (a, b), y in self.first.items():
            self._follows(b, a, when=(y,))
            beside = self.problem.has_lanes(self.problem.device[b.stage]) and a.kind in ("I", "W") and b.kind == "F"
            if not beside:
                self._follows(a, b, when=(~y,))

    def _memory(self) -> None:
        """Add (c)."""
        problem = self.problem
        for d in range(problem.devices):
            for forward in problem.operations(d):
                if forward.kind == "F":
                    held = sum_of(
                        problem.delta[op.kind][op.stage] * self.ends_before(op, forward)
                        for op in problem.operations(d)
                        if op != forward
                    )
                    self.model.at_least(-held, problem.taken[forward.stage] - problem.room[d])

    def _implied(self) -> None:
        """Add (d)."""
        problem = self.problem
        for (a, b), y in self.first.items():
            for pair in (a._replace(micro_batch=a.micro_batch - 1), b), (a, b._replace(micro_batch=b.micro_batch + 1)):
                if pair in self.first:
                    self.model.at_least({self.first[pair]: 1, y: -1})
        for rows in filter(None, problem.machines):
            work = problem.micro_batches * sum(problem.time[kind][s] for kind, s in rows)
            ends = min(self.least[kind][s] for kind, s in rows) + min(self.after[kind][s] for kind, s in rows)
            self.model.at_least({self.objective: 1}, ends + work)


def _beside(problem: PipelineSchedule, device: int) -> Iterator[tuple[Op, Op]]:
    """Pairs of an operation that frees memory and a forward, on a device with two lanes."""
    operations = problem.operations(device)
    return ((a, b) for b in operations if b.kind == "F" for a in operations if a.kind != "F")


def _orders(problem: PipelineSchedule, ends_before: Callable[[Op, Op], bool]) -> Orders:
    """Orders of a solution: each lane sorted by the number of predecessors, then lanes merged and transfers sorted."""
    lanes = [
        sorted(own, key=lambda b: sum(ends_before(a, b) for a in own if a != b))
        for own in (problem.all_of(rows) for rows in problem.lanes)
    ]
    orders, left = [], iter(lanes)
    for d in range(problem.devices):
        own = next(left)
        orders.append(tuple(_merged(own, next(left), ends_before)) if problem.has_lanes(d) else tuple(own))
    if problem.sent:
        before: dict[Op, list[Op]] = {op: [] for op in problem.transfers()}
        for rows in problem.carried.values():
            for a, b in permutations(problem.all_of(rows), 2):
                if ends_before(a, b):
                    before[b].append(a)
        orders.append(tuple(TopologicalSorter(before).static_order()))
    return tuple(orders)


def _merged(forwards: list[Op], others: list[Op], ended: Callable[[Op, Op], bool]) -> Iterator[Op]:
    """Merge two lanes: a forward comes after the operations of the other lane that have ended before it."""
    listed = 0
    for forward in forwards:
        ahead = max((n for n, op in enumerate(others, 1) if ended(op, forward)), default=0)
        yield from others[listed:ahead]
        listed = max(listed, ahead)
        yield forward
    yield from others[listed:]
