r"""Least period of a pattern: CP-SAT tests single periods (`modulo`), upwards from a lower bound, then by bisection.

With T the period and u the unit, operation o of micro-batch j < u starts at

    a_o = offset_d + r_o + T q_o,      0 ≤ r_o ≤ T − time_o,      q_o integer.

The frame of device d begins with the forward of its first stage and micro-batch 0 (r = 0), so that no operation lies
across its edge::

    device d   │F0 ·· W1 F1 I0 ·· W0 I1│F0 ·· W1 F1 …      x_ab: a before b in the frame
             offset                 offset + T

- *no overlap*: the frame's operations do not overlap;
- *inputs* of `schedule.instance`, on a_o;
- *order*: micro-batches of one kind and stage in order, also across the edge:  a_{j} ≥ a_{j−1} + time,
  a_0 + T ≥ a_{u−1} + time;
- *room*: at each forward f the device holds at most its room. The number of o's instances begun by then exceeds that of
  an operation at f's place by  q_f − q_o + [o before f],  and taken = freed + freed by weight, so q_f cancels:

      Σ_{s on d} Σ_j  taken_s ([F ≤ f] − q_F) − freed_s ([I before f] − q_I) − freed_w_s ([W before f] − q_W) ≤ room_d.

- *area*, redundant: that of `holding` on average over the frame,
  Σ taken_s (a_I + time_I − a_F) + freed_w_s (a_W + time_W − a_I − time_I) ≤ T room_d.

The q have finite bounds without loss of generality. An operation that waits a period or more beyond its inputs may
start a period earlier, or, if it is a forward and memory requires it late, all forwards before it may start a period
later. So along the chain no step waits T for all j. As all j lie within T on both sides, none waits 3 T.

Operations of time 0 get one tick, so the order of a frame is unambiguous.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver
from pipeplan_formulations.schedule.cyclic.holding import period_bound
from pipeplan_formulations.schedule.cyclic.pattern import Pattern, compact
from pipeplan_formulations.schedule.instance import Op, PipelineSchedule

Aim = Literal["any", "memory", "latency"]
"""Objective at the given period: none, the largest share of its room that a device holds, or the time from the first
start to the last end."""


@dataclass(frozen=True)
class Found:
    """Result of CP-SAT for one period.

    Attributes
    ----------
    pattern : Pattern or None
    proved : bool
        True if it is proved that there is no pattern, or none better in the aim.
    """

    pattern: Pattern | None
    proved: bool


def modulo(
    problem: PipelineSchedule,
    unit: int,
    period: int,
    limits: Limits,
    aim: Aim = "any",
    hint: Pattern | None = None,
) -> Found:
    """Search a pattern with this period by CP-SAT.

    ``hint`` is the start of the search; it may have another period, but must have the same unit.
    """
    ticking = _with_lengths(problem)
    work = [
        unit * sum(ticking.forward[s] + ticking.backward[s] + ticking.weight[s] for s in hosted)
        for hosted in ticking.hosted
    ]
    # A device's work in one period must fit into it.
    if max(work) > period or not problem.possible:
        return Found(None, True)
    frame = _Frame(ticking, unit, period)
    frame.constraints(loose=aim == "memory")
    frame.objective(aim)
    if hint is not None:
        frame.hint(hint)
    cp, solver = cp_model(), cpsat_solver(replace(limits, gap=0.0))
    status = solver.solve(frame.sat)
    if solver.interrupted:
        raise KeyboardInterrupt
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        return Found(frame.extract(solver), status == cp.OPTIMAL)
    return Found(None, status == cp.INFEASIBLE)


def _with_lengths(problem: PipelineSchedule) -> PipelineSchedule:
    """Problem with at least one tick for every operation."""
    weight = tuple(max(1, w) if split else 0 for w, split in zip(problem.weight, problem.split, strict=True))
    return replace(
        problem,
        forward=tuple(max(1, f) for f in problem.forward),
        backward=tuple(max(1, b) for b in problem.backward),
        weight=weight,
    )


class _Frame:
    """CP-SAT model of one period.

    Variables: ``offset[d]``; ``place[o]`` (r_o), ``period_index[o]`` (q_o), ``begin[o]`` (a_o); ``first[a, b]`` (x_ab).
    """

    def __init__(self, problem: PipelineSchedule, unit: int, period: int) -> None:
        self.problem, self.unit, self.period = problem, unit, period
        self.sat = cp_model().CpModel()
        self.ops = [Op(k, s, j) for s in range(problem.stages) for k in problem.kinds(s) for j in range(unit)]
        # Time 0 is the start of F_0(0); its device need not be device 0.
        self.offset = [self.sat.new_int_var(0, period - 1, "") for _ in range(problem.devices)]
        chain = sum(problem.forward) + sum(problem.backward) + sum(problem.lag) + sum(problem.lag_back)
        most = chain // period + 3 * (2 * problem.stages + 1)
        self.place = {op: self.sat.new_int_var(0, period - problem.duration(op), "") for op in self.ops}
        self.period_index = {op: self.sat.new_int_var(-1, most, "") for op in self.ops}
        self.begin = {
            op: self.offset[problem.device[op.stage]] + self.place[op] + period * self.period_index[op]
            for op in self.ops
        }
        self.first: dict[tuple[Op, Op], Any] = {}
        self.latest = (most + 2) * period

    def constraints(self, loose: bool) -> None:
        """Add all of them; ``loose`` leaves the room to the objective."""
        # Time 0, the edges of the frames, and no overlap.
        sat, problem = self.sat, self.problem
        source = Op("F", 0, 0)
        sat.add(self.period_index[source] == 0)
        sat.add(self.offset[problem.device[0]] == 0)
        for hosted in problem.hosted:
            if hosted:
                sat.add(self.place[Op("F", hosted[0], 0)] == 0)
            mine = [op for op in self.ops if op.stage in hosted]
            sat.add_no_overlap(
                [sat.new_fixed_size_interval_var(self.place[op], problem.duration(op), "") for op in mine]
            )
        # Inputs and order.
        for op in self.ops:
            for after, lag in self._inputs(op):
                sat.add(self.begin[op] >= self.begin[after] + problem.duration(after) + lag)
            before = Op(op.kind, op.stage, op.micro_batch - 1 if op.micro_batch else self.unit - 1)
            if before != op:
                edge = 0 if op.micro_batch else self.period
                sat.add(self.begin[op] + edge >= self.begin[before] + problem.duration(op))
        # Room and area.
        self.peaks = [self._held(Op("F", s, j)) for s in range(problem.stages) for j in range(self.unit)]
        for room, held in self.peaks:
            if not loose:
                sat.add(held <= room)
        for d in range(problem.devices):
            sat.add(self._area(d) <= self.period * problem.room[d])

    def objective(self, aim: Aim) -> None:
        """Minimise the latency, or the largest peak as a share of the room."""
        sat = self.sat
        if aim == "latency":
            end = sat.new_int_var(0, self.latest, "")
            for op in self.ops:
                sat.add(end >= self.begin[op] + self.problem.duration(op))
            sat.minimize(end)
        elif aim == "memory":
            # One variable for the largest share, in units of the largest room; it is exact if all rooms are equal.
            largest = max(self.problem.room)
            share = sat.new_int_var(0, largest, "")
            for room, held in self.peaks:
                sat.add(held * largest <= share * room)
            sat.minimize(share)

    def hint(self, pattern: Pattern) -> None:
        """Add the starts of another pattern as hint, mapped to the frames of this period."""
        problem = self.problem
        zero = pattern.starts[Op("F", 0, 0)]
        for hosted in problem.hosted:
            if not hosted:
                continue
            edge = pattern.starts[Op("F", hosted[0], 0)] - zero
            self.sat.add_hint(self.offset[problem.device[hosted[0]]], edge % self.period)
            for op in self.ops:
                if op.stage in hosted:
                    beyond, place = divmod(pattern.starts[op] - zero - edge, pattern.period)
                    self.sat.add_hint(self.place[op], min(place, self.period - problem.duration(op)))
                    self.sat.add_hint(self.period_index[op], beyond + edge // self.period)

    def extract(self, solver: Any) -> Pattern:
        """Pattern of the solution."""
        return Pattern(self.unit, self.period, {op: solver.value(self.begin[op]) for op in self.ops})

    def _inputs(self, op: Op) -> list[tuple[Op, int]]:
        """Direct inputs of an operation with lags. An I with a next stage has only that stage's I, which implies F."""
        rows = self.problem.inputs[op.kind, op.stage][-1:]
        return [(Op(*row, op.micro_batch), lag) for row, lag in rows]

    def _held(self, forward: Op) -> tuple[int, Any]:
        """Room of the forward's device, and the bytes it holds when the forward begins."""
        problem = self.problem
        d = problem.device[forward.stage]
        total: Any = 0
        for op in self.ops:
            change = problem.delta[op.kind][op.stage]
            if problem.device[op.stage] == d and change:
                begun = 1 if op == forward else self._before(op, forward)
                total += change * begun - change * self.period_index[op]
        return problem.room[d], total

    def _before(self, a: Op, b: Op) -> Any:
        """Literal x_ab: a before b in the frame."""
        if (b, a) in self.first:
            return self.first[b, a].negated()
        if (a, b) not in self.first:
            literal, sat = self.sat.new_bool_var(""), self.sat
            sat.add(self.place[b] >= self.place[a] + self.problem.duration(a)).only_enforce_if(literal)
            sat.add(self.place[a] >= self.place[b] + self.problem.duration(b)).only_enforce_if(literal.negated())
            self.first[a, b] = literal
        return self.first[a, b]

    def _area(self, device: int) -> Any:
        """Bytes times time that one period adds on a device."""
        problem = self.problem
        total: Any = 0
        for op in self.ops:
            if problem.device[op.stage] == device:
                change = problem.delta[op.kind][op.stage]
                end = 0 if op.kind == "F" else problem.duration(op)
                total -= change * (self.begin[op] + end)
        return total


SHARE = 1 / 4
"""Share of the time left for the test of one period."""
FIRST_RISE = 1 / 256
"""Relative distance of the second period tried from the bound; it doubles until there is a pattern."""


@dataclass(frozen=True)
class LeastPeriod:
    """Result of `least_period` for one unit.

    Attributes
    ----------
    unit : int
    bound : int
        Lower bound on the period of patterns of this unit.
    any_unit : int
        Lower bound on the mean time of ``unit`` micro-batches in an endless schedule of any unit.
    pattern : Pattern or None
        The best pattern found; None if the problem is impossible or time was too short.
    """

    unit: int
    bound: int
    any_unit: int
    pattern: Pattern | None

    @property
    def proved(self) -> bool:
        """True if it is proved that no smaller period exists for this unit."""
        return self.pattern is not None and self.pattern.period <= self.bound


def least_period(
    problem: PipelineSchedule,
    unit: int,
    limits: Limits,
    hint: Pattern | None = None,
    on_progress: Callable[[LeastPeriod], None] | None = None,
    below: int | None = None,
) -> LeastPeriod:
    """Search a pattern of ``unit`` micro-batches with the least period, to within ``limits.gap``.

    Parameters
    ----------
    hint : Pattern, optional
        A pattern of the same unit to start from.
    on_progress : callable, optional
        Called after every test of a period.
    below : int, optional
        Search only periods below this one.
    """
    clock = Clock(limits)
    low = any_unit = period_bound(problem, unit)
    # Every operation of a pattern takes at least a tick. So with operations of time 0 its absence proves nothing.
    best, certain = hint, all(min(problem.time[k][s] for k in problem.kinds(s)) for s in range(problem.stages))
    high = min([p for p in (below, hint.period if hint else None) if p is not None], default=None)

    def state() -> LeastPeriod:
        return LeastPeriod(unit, bound, any_unit, best)

    bound = low
    if not problem.possible:
        return state()
    # low: least period not yet excluded or given up; high: period of the best pattern. Without a pattern the period
    # rises from the bound in doubling steps, then bisection follows.
    rise, period = FIRST_RISE, low
    while high is None or low < high * (1 - limits.gap):
        if high is not None:
            period = min(period, high - 1)
        if clock.left <= 0.05 or period < low:
            break
        quick = compact(problem, period) if unit == 1 else None
        part = replace(limits, time=max(0.1, clock.left * SHARE))
        found = modulo(problem, unit, period, part, hint=best) if quick is None else Found(quick, False)
        if found.pattern is not None:
            best, high = found.pattern, period
            period = (low + high) // 2
        else:
            certain = certain and found.proved
            low = period + 1
            bound = low if certain else bound
            period = (low + high) // 2 if high is not None else max(low, int(any_unit * (1 + rise)))
            rise *= 2
        if on_progress is not None:
            on_progress(state())
    return state()


def refined(problem: PipelineSchedule, pattern: Pattern, limits: Limits, aim: Aim) -> Pattern:
    """Pattern of the same period that minimises ``aim``; the pattern itself if time is too short to find one."""
    found = modulo(problem, pattern.unit, pattern.period, limits, aim, hint=pattern)
    return found.pattern if found.pattern is not None else pattern
