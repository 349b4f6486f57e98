"""Bounds on many micro-batches from bounds on few: russian doll search.

The problem of n micro-batches is solved for growing n, each with what is proved of the smaller ones (`Spans`) in its
windows. G. Verfaillie, M. Lemaître and T. Schiex, Russian doll search for solving constraint optimization problems
(1996), nest subproblems so; here the smaller ones are both the beginning and the end of the larger one, and what is
between takes at least what they say together. So each n has little left to prove: a time just above what the windows
show already is refuted in a moment (`answered`).

All that is asked of the problem without the weight gradients of later stages (`without_later_weights`): it is short,
and where memory keeps micro-batches waiting its optimum is close. Where work on a device is what takes time it is not,
and the search ends as soon as that shows.

Without later weights
---------------------
Where memory is tight a step is long because micro-batches must come back before others may set out. That takes their
forwards, their input gradients and what stage 0 does, hardly the W of the others; without these there is much less to
decide. Of any schedule leave out the W_s, s > 0, and let I_s free what they freed, which is earlier: it remains a
schedule. So whatever bounds the shorter problem bounds this part of the longer one.

What is left ends with stage 0: every F_s(i) and I_s(i) precedes I_0(i), and all that stage 0 runs on micro-batches
before the last precedes its last operation on the last. So the optimum is a bound on the end of that operation
(`Spans.first`), and with the ending of stage 0 on the whole step (`Spans.step`).

Questions
---------
A time that is too short by a per cent or two is refuted much sooner than the same bound is reached by raising an
objective: every operation has to fit between its head and T less its tail, so that windows are narrow, and most of the
order on the devices is known before the search begins.
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
    """Backwards of all stages but the first joined, W left out."""
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
    """Of orders of the original problem what the relaxed one has of the last `relaxed.micro_batches`.

    `micro_batches` is how many the orders have.
    """
    gone = micro_batches - relaxed.micro_batches
    return tuple(
        tuple(Op(kind, s, i - gone) for kind, s, i in order if i >= gone and (kind != "W" or relaxed.split[s]))
        for order in orders
    )


RISE = 3
"""A question is as far above the bound as 1 / `RISE` of the gap: the shorter the time, the sooner it is refuted."""


def answered(problem: PipelineSchedule, known: Windows, time: int, limits: Limits) -> int | None:
    """`time` + 1 if no schedule takes at most `time`, what one takes if there is, None if that was not found out.

    Parameters
    ----------
    problem : PipelineSchedule
        All operations take time.
    known : Windows
        Its windows; `time` is no less than the `lower_bound` that they give.
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


def raised(
    problem: PipelineSchedule, known: Windows, low: int, high: int, limits: Limits, patience: float, fine: float
) -> int:
    """A bound between `low`, which is one, and `high`, which some schedule takes, by questions (`answered`).

    `limits.time` is that of all questions, `patience` the most seconds for one. Where it does not do a shorter time is
    asked for, until one is refuted. `fine` is the part of `high` at which the gap is small enough.
    """
    clock, refuted, lost = Clock(limits), False, False
    while high - low > fine * high and clock.left > 0 and not (refuted and lost):
        time = low + (high - low) // RISE
        answer = answered(problem, known, time, replace(limits, time=min(patience, clock.left)))
        if answer is not None and answer > time:
            low, refuted = answer, True
        else:
            high, lost = time if answer is None else answer, lost or answer is None
    return low


STEP = 4
"""Micro-batches that the next doll has more."""
PATIENCE = 0.1
"""Part of the time that one question may take."""
FINE, FINEST = 0.002, 0.0002
"""Part of a makespan to which bounds are worth knowing, of fewer micro-batches and of all."""
EARLY = 0.25
"""Part of the micro-batches up to which smaller problems may prove nothing."""


def russian_dolls(problem: PipelineSchedule, best: Orders, limits: Limits, most_pairs: int) -> Spans:
    """Spans of the problem for as many n as time allows, M itself the last; none where they bring nothing.

    Parameters
    ----------
    problem : PipelineSchedule
        All operations take time.
    best : orders
        Good ones: what they do with n micro-batches is where bounds on n need not look further.
    limits : Limits
    most_pairs : int
        Size from which on models are not built.
    """
    clock, total = Clock(limits), problem.micro_batches
    relaxed = without_later_weights(problem)
    bounds: dict[int, int] = {}
    for n in _sizes(total):
        part = replace(relaxed, micro_batches=n)
        if clock.left <= 0 or pairs(part) > most_pairs:
            break
        known = windows(part, Spans(bounds, bounds))
        low = lower_bound(part, known)
        high = _value(part, best, total)
        left = replace(limits, time=clock.left)
        patience = PATIENCE * limits.time if n < total else clock.left / 2
        plain = lower_bound(replace(problem, micro_batches=n)) - problem.ending[0]
        if low < plain:  # is more than that to be had here at all?
            answer = answered(part, known, plain, replace(left, time=min(patience, left.time))) if plain < high else 0
            if answer is not None and answer > plain:
                low = answer
            elif n > EARLY * total:
                break
        fine = FINE if n < total else FINEST
        bounds[n] = raised(part, known, low, high, replace(limits, time=clock.left), patience, fine)
    return Spans({n: bound + problem.ending[0] for n, bound in bounds.items()}, bounds)


def _sizes(total: int) -> Iterator[int]:
    yield from range(STEP, total, STEP)
    yield total


def _value(part: PipelineSchedule, best: Orders, total: int) -> int:
    begun = starts(part, last_micro_batches(best, part, total))
    if begun is None:
        raise ValueError("the orders wait for each other in a circle")
    return makespan(part, begun)
