"""Small instances by CBC: a second proof that shares only the start and the bounds with CP-SAT.

A mixed-integer program with a start A ≥ 0 for every operation and every transfer. For each pair on one lane or one wire
that no chain orders there is a y that is 1 where the first of them comes first; for a forward and what may run beside
it, one that is 1 only where that has ended:

(a)  (1) to (3), (6), the order 0, 1, 2, … of one kind and stage, and T ≥ last end + ending of each stage.
(b)  A_b ≥ A_a + time_a − G (1 − y_{ab}),   A_a ≥ A_b + time_b − G y_{ab},   G the most by which they can lack.
     and only the first of both for what may run beside. Ends are those of the tensors that a device waits for.
(c)  For every forward, the bytes of those that y puts before it, and its own, are at most the room.
(d)  Of Y_i and Y_{i+1} of one kind and stage the second comes before X only if the first does; and a lane or wire
     takes its least head, its work and its least tail. CBC would find neither by itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from itertools import combinations, permutations
from typing import Any

from pipeplan_formulations.cbc_process import proven, run_cbc
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.report import Limits, Progress, Report, Stop
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.evaluate import makespan, starts
from pipeplan_formulations.schedule.precedence import heads, precedes, tails
from pipeplan_formulations.schedule.problem import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.start import SHARE, Stretched, open_bracket, start, stretched
from pipeplan_formulations.solvers import cbc_version, pulp

NAME = "cbc"
SIZE = 1e4
"""About what the largest time is in the model's units."""


@dataclass(frozen=True)
class _Model:
    lp: Any
    begins: dict[Op, Any]
    first: dict[tuple[Op, Op], Any]
    objective: Any


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, progress: Progress | None = None
) -> Report[Orders]:
    """Minimise (5). Same call as `cpsat.solve`; CBC knows of the start by its value only."""
    bracket = open_bracket(problem, limits, progress)
    if bracket.impossible:
        return bracket.report(Stop.OPTIMALITY, NAME, cbc_version())
    try:
        bracket.raise_low(lower_bound(problem))
        start(problem, bracket, hint, SHARE * limits.time)
        stop = Stop.GAP if bracket.closed else _search(stretched(problem), bracket)
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME, cbc_version())


def _search(form: Stretched, bracket: Bracket[Orders]) -> Stop:
    problem = form.problem
    begun = starts(problem, bracket.best) if bracket.best is not None else None
    high = problem.largest if begun is None else makespan(problem, begun)
    unit = max(1.0, high / SIZE)
    model = _variables(problem, high, unit)
    _constraints(problem, model, high, unit)
    model.lp.setObjective(pulp().LpAffineExpression({model.objective: 1}))
    if bracket.clock.left <= 0:
        return Stop.TIME
    flags = list(model.first.values())
    answer = run_cbc(model.lp, [model.objective, *flags], bracket.clock.left, bracket.limits)
    if answer.infeasible:  # the start is a solution of the program, so this must not be
        return Stop.ERROR
    claimed = answer.bound
    if answer.point is not None:
        _extract(problem, model, answer.point[1:], bracket)
        if answer.optimal and bracket.limits.gap == 0:
            claimed = max(claimed, answer.point[0])
    bracket.raise_low(form.bound(proven(claimed * unit, unit)))
    if answer.interrupted:
        return Stop.INTERRUPT
    return Stop.TIME if answer.late or bracket.clock.left <= 0 else Stop.GAP


def _variables(problem: PipelineSchedule, high: int, unit: float) -> _Model:
    module = pulp()
    lp = module.LpProblem("schedule", module.LpMinimize)
    least = heads(problem)
    begins: dict[Op, Any] = {}
    first: dict[tuple[Op, Op], Any] = {}
    for op in problem.everything():
        begins[op] = lp.add_variable(f"t{len(begins)}", least[op.kind][op.stage] / unit)
    apart = (pair for rows in problem.machines for pair in combinations(problem.all_of(rows), 2))
    beside = (pair for d in range(problem.devices) if problem.has_lanes(d) for pair in _beside(problem, d))
    for a, b in (*apart, *beside):
        if (a, b) not in first and not precedes(problem, a, b) and not precedes(problem, b, a):
            first[a, b] = lp.add_variable(f"y{len(first)}", 0, 1, module.LpInteger)
    objective = lp.add_variable("T", 0, high / unit)
    return _Model(lp, begins, first, objective)


def _beside(problem: PipelineSchedule, device: int) -> Iterator[tuple[Op, Op]]:
    """Of a device with two lanes whatever frees memory, and the forwards that may need it."""
    operations = problem.operations(device)
    return ((a, b) for b in operations if b.kind == "F" for a in operations if a.kind != "F")


def _constraints(problem: PipelineSchedule, model: _Model, high: int, unit: float) -> None:
    """(a) to (c), one after the other."""
    lp, begins = model.lp, model.begins

    def end(op: Op) -> Any:
        sent = problem.transfer(op) if problem.overlap == "none" else None
        last = sent or op
        return begins[last] + problem.duration(last) / unit

    def follows(b: Op, a: Op, lag: int = 0) -> None:
        lp.addConstraint(begins[b] - end(a) >= lag / unit)

    def needs(b: Op, a: Op, lag: int) -> None:
        """The tensor of a."""
        follows(b, a, lag)
        sent = problem.transfer(a)
        if sent is not None:
            follows(b, sent, lag)

    for op in begins:
        kind, s, i = op
        if i:
            follows(op, Op(kind, s, i - 1))
        if kind == "F" and s:
            needs(op, Op("F", s - 1, i), problem.lag[s - 1])
        if kind == "I":
            follows(op, Op("F", s, i))
            if s < problem.stages - 1:
                needs(op, Op("I", s + 1, i), problem.lag_back[s])
        if kind == "W":
            follows(op, Op("I", s, i))
        sent = problem.transfer(op)
        if sent is not None:
            lp.addConstraint(begins[sent] - begins[op] >= problem.ready[sent.kind, s] / unit)
        if i == problem.micro_batches - 1 and kind in ("F", "I", "W"):
            lp.addConstraint(model.objective - end(op) >= problem.ending[s] / unit)

    least, after = heads(problem), tails(problem)
    for (a, b), y in model.first.items():
        beside = problem.has_lanes(problem.device[b.stage]) and (a.kind in ("I", "W")) and b.kind == "F"
        for x, z, flag in ((a, b, y),) if beside else ((a, b, y), (b, a, 1 - y)):
            latest_end = high - after[x.kind][x.stage]
            lack = max(0, latest_end - least[z.kind][z.stage]) / unit
            lp.addConstraint(begins[z] - end(x) - lack * flag >= -lack)

    for d in range(problem.devices):
        for forward in problem.operations(d):
            if forward.kind == "F":
                held = problem.taken[forward.stage] + pulp().lpSum(
                    problem.delta[op.kind][op.stage] * _comes_first(problem, model.first, op, forward)
                    for op in problem.operations(d)
                    if op != forward
                )
                lp.addConstraint(held <= problem.room[d])
    _implied(problem, model, unit)


def _implied(problem: PipelineSchedule, model: _Model, unit: float) -> None:
    """(d)."""
    lp, least, after = model.lp, heads(problem), tails(problem)
    for (a, b), y in model.first.items():
        for pair in (a._replace(micro_batch=a.micro_batch - 1), b), (a, b._replace(micro_batch=b.micro_batch + 1)):
            if pair in model.first:
                lp.addConstraint(y <= model.first[pair])
    for rows in filter(None, problem.machines):
        work = problem.micro_batches * sum(problem.time[kind][s] for kind, s in rows)
        ends = min(least[kind][s] for kind, s in rows) + min(after[kind][s] for kind, s in rows)
        lp.addConstraint(model.objective >= (ends + work) / unit)


def _comes_first(problem: PipelineSchedule, first: Mapping[tuple[Op, Op], Any], a: Op, b: Op) -> Any:
    """Whether a ends before b: 0 or 1, or the flag that tells."""
    if (a, b) in first:
        return first[a, b]
    if (b, a) in first:
        return 1 - first[b, a]
    return int(precedes(problem, a, b))


def _extract(problem: PipelineSchedule, model: _Model, flags: list[float], bracket: Bracket[Orders]) -> None:
    """Each lane by how many of its operations come before; a forward behind what has ended on the lane beside it."""
    comes_first = partial(
        _comes_first, problem, {pair: int(flag > 0.5) for pair, flag in zip(model.first, flags, strict=True)}
    )

    lanes = [
        sorted(own, key=lambda b: sum(comes_first(a, b) for a in own if a != b))
        for own in (problem.all_of(rows) for rows in problem.lanes)
    ]
    orders, left = [], iter(lanes)
    for d in range(problem.devices):
        own = next(left)
        orders.append(tuple(_merged(own, next(left), comes_first)) if problem.has_lanes(d) else tuple(own))
    if problem.sent:
        before: dict[Op, list[Op]] = {op: [] for op in problem.transfers()}
        for rows in problem.carried.values():
            for a, b in permutations(problem.all_of(rows), 2):
                if comes_first(a, b):
                    before[b].append(a)
        orders.append(tuple(TopologicalSorter(before).static_order()))
    bracket.offer(tuple(orders))


def _merged(forwards: list[Op], others: list[Op], ended: Callable[[Op, Op], bool]) -> Iterator[Op]:
    listed = 0
    for forward in forwards:
        ahead = max((n for n, op in enumerate(others, 1) if ended(op, forward)), default=0)
        yield from others[listed:ahead]
        listed = max(listed, ahead)
        yield forward
    yield from others[listed:]
