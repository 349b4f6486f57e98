"""Russian doll search: lower bounds on many micro-batches from lower bounds on few.

The problem of n micro-batches is solved for growing n, each time with the bounds of the smaller ones (`Spans`) in its
windows. The nesting of subproblems is that of G. Verfaillie, M. Lemaître and T. Schiex, Russian doll search for solving
constraint optimization problems (1996). Here a smaller problem is both the beginning and the end of the larger one, and
both bounds together hold for the time between. So each n has little left to prove: a time just above the bound by
windows is refuted quickly (`decide`).

All this is done on the problem without the weight gradients of later stages (`without_later_weights`). It is short, and
its optimum is close if memory keeps micro-batches waiting. It is not close if the work of a device is the bottleneck;
the search ends as soon as that is detected.

Without later weights
---------------------
With tight memory a step is long because micro-batches must return before others may start. That time consists of their
forwards, their input gradients and the operations of stage 0, hardly of the W of the others; without these W there is
much less to decide. Remove from any schedule the W_s, s > 0, and let I_s free their bytes, which is earlier: it remains
a schedule. So a lower bound on the shorter problem is one on this part of the longer one.

The reduced problem ends with stage 0. Every F_s(i) and I_s(i) precedes I_0(i), and all operations of stage 0 on
micro-batches before the last precede its last operation on the last one. So the optimum is a lower bound on the end of
that operation (`Spans.first`), and with the ending of stage 0 on the whole step (`Spans.step`).

Decision problems
-----------------
A time that is too short by a per cent or two is refuted much sooner than the same bound is reached by raising an
objective. Every operation has to fit between its head and T less its tail, so windows are narrow, and most of the order
on the devices is fixed before the search begins.
"""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.solvers import cp_model, why_stopped
from pipeplan_formulations.schedule.bounds import Spans, Windows, lower_bound, windows
from pipeplan_formulations.schedule.cpsat_model import CpsatModel, pairs
from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import makespan, starts


def without_later_weights(problem: PipelineSchedule) -> PipelineSchedule:
    """Relaxation with joined backwards and without W on all stages except the first."""
    later = (0,) * (problem.stages - 1)
    return replace(
        problem,
        weight=(problem.weight[0], *later),
        split=(problem.split[0], *(False for _ in later)),
        freed=(problem.freed[0], *problem.taken[1:]),
        freed_by_weight=(problem.freed_by_weight[0], *later),
        ending=(0, *later),
    )


def last_micro_batches(orders: Orders, relaxed: PipelineSchedule, micro_batches: int) -> Orders:
    """Orders of the relaxed problem from the last `relaxed.micro_batches` of orders of the original problem.

    `micro_batches` is the number of micro-batches of the given orders.
    """
    gone = micro_batches - relaxed.micro_batches
    return tuple(
        tuple(Op(kind, s, i - gone) for kind, s, i in order if i >= gone and (kind != "W" or relaxed.split[s]))
        for order in orders
    )


RISE = 3
"""A tested time is 1 / `RISE` of the gap above the bound: the shorter the time, the sooner it is refuted."""


def decide(problem: PipelineSchedule, known: Windows, time: int, limits: Limits) -> int | None:
    """Decide if some schedule takes at most `time`: return its makespan, `time` + 1 if there is none, None if unknown.

    Parameters
    ----------
    problem : PipelineSchedule
        All operations take time.
    known : Windows
        The problem's windows; `time` is no less than the `lower_bound` by them.
    time : int
    limits : Limits

    Raises
    ------
    KeyboardInterrupt
        If the solver was interrupted.
    """
    cp, clock = cp_model(), Clock(limits)
    model = CpsatModel(problem, known, 0, time)
    model.sat.clear_objective()
    solver = model.solver(limits)
    status = solver.solve(model.sat)
    if status == cp.INFEASIBLE:
        return time + 1
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        return int(solver.value(model.objective))
    if why_stopped(solver, clock) is Stop.INTERRUPT:
        raise KeyboardInterrupt
    return None


def raised_bound(
    problem: PipelineSchedule, known: Windows, low: int, high: int, limits: Limits, patience: float, fine: float
) -> int:
    """Raise a lower bound `low` towards `high`, the makespan of some schedule, by decision problems (`decide`).

    `limits.time` is the time of all of them, `patience` the largest number of seconds for one. If one times out, a
    shorter time is tested, until one is refuted. `fine` is the relative gap that is small enough.
    """
    clock, refuted, lost = Clock(limits), False, False
    while high - low > fine * high and clock.left > 0 and not (refuted and lost):
        time = low + (high - low) // RISE
        answer = decide(problem, known, time, replace(limits, time=min(patience, clock.left)))
        if answer is not None and answer > time:
            low, refuted = answer, True
        else:
            high, lost = time if answer is None else answer, lost or answer is None
    return low


STEP = 4
"""Increase of the number of micro-batches from one subproblem to the next."""
PATIENCE = 0.1
"""Share of the time for one decision problem."""
FINE, FINEST = 0.002, 0.0002
"""Relative accuracy of the bounds on fewer micro-batches, and on all of them."""
EARLY = 0.25
"""Share of the micro-batches up to which subproblems may fail to improve the bound."""


def russian_dolls(problem: PipelineSchedule, best: Orders, limits: Limits, most_pairs: int) -> Spans:
    """Spans of the problem for as many n as time allows, M itself the last; empty if they improve nothing.

    Parameters
    ----------
    problem : PipelineSchedule
        All operations take time.
    best : orders
        Good orders: their makespan with n micro-batches is the upper end for bounds on n.
    limits : Limits
    most_pairs : int
        Largest size of a model (`pairs`).
    """
    clock, total = Clock(limits), problem.micro_batches
    relaxed = without_later_weights(problem)
    bounds: dict[int, int] = {}
    for n in _sizes(total):
        part = replace(relaxed, micro_batches=n)
        if clock.left <= 0 or pairs(part) > most_pairs:
            break
        # low: bound by windows and smaller n; high: makespan of ``best`` on n micro-batches.
        known = windows(part, Spans(bounds, bounds))
        low = lower_bound(part, known)
        high = _value(part, best, total)
        left = replace(limits, time=clock.left)
        patience = PATIENCE * limits.time if n < total else clock.left / 2
        plain = lower_bound(replace(problem, micro_batches=n)) - problem.ending[0]
        # plain: bound of the unrelaxed problem. Unless the relaxation can be proved above it, the search ends.
        if low < plain:
            answer = decide(part, known, plain, replace(left, time=min(patience, left.time))) if plain < high else 0
            if answer is not None and answer > plain:
                low = answer
            elif n > EARLY * total:
                break
        fine = FINE if n < total else FINEST
        bounds[n] = raised_bound(part, known, low, high, replace(limits, time=clock.left), patience, fine)
    return Spans({n: bound + problem.ending[0] for n, bound in bounds.items()}, bounds)


def _sizes(total: int) -> Iterator[int]:
    yield from range(STEP, total, STEP)
    yield total


def _value(part: PipelineSchedule, best: Orders, total: int) -> int:
    begun = starts(part, last_micro_batches(best, part, total))
    if begun is None:
        raise ValueError("the orders deadlock")
    return makespan(part, begun)
