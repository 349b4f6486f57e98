r"""How far apart n micro-batches start at least: a bound where memory is short and micro-batches are many.

Let D(n) be the least time from the start of F_0(0) to that of F_0(n) in any schedule. Take a schedule of any number of
micro-batches and leave out all but i, i + 1, …, i + n: nothing that is left waits for what is gone, no more is held
than before, and it is a schedule of n + 1 micro-batches from the start of F_0(i) on. So F_0(i + n) starts D(n) or more
after F_0(i), whatever i, and with M − 1 = q n + r, r < n,

(17)  step ≥ q D(n) + the least step of the last r + 1 micro-batches alone.

In an endless schedule n micro-batches take D(n) or more on average. That is more than what (6) and the work say as soon
as n is so large that forwards and backwards of different micro-batches must get in each other's way::

    device 1   ··F1·I0   or   ··I0·F1      the one that waits makes its own round trip longer, on which device 0 waits

D(n) is at most n times the least period, and less by what the first of n micro-batches gain from an empty pipeline.

It is bounded by CP-SAT: the rows of `cpsat_model` for n + 1 micro-batches, with the start of F_0(n) as objective. A
schedule whose operations start as early as its order allows is no longer than one thing after the other, which is thus
time enough for all of them.
"""

import math
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.cpsat import whole
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.solvers import cp_model
from pipeplan_formulations.schedule.bounds import windows
from pipeplan_formulations.schedule.cpsat_model import CpsatModel
from pipeplan_formulations.schedule.cyclic.drain import drain_bound
from pipeplan_formulations.schedule.cyclic.holding import holdings, period_bound, step_bound
from pipeplan_formulations.schedule.instance import Op, PipelineSchedule

PAIRS = 16_000
"""So many pairs of a forward and an operation that memory may put behind it are what CP-SAT proves something for."""


def stride_bound(problem: PipelineSchedule, limits: Limits) -> int:
    """(17), as far as CP-SAT proves it within the limits; small n, which are proved soon, before larger ones.

    0 where it would say no more than others: where the work of a device says more of a period than its memory does,
    where micro-batches are few, or operations take no time.
    """
    instant = not all(min(problem.time[k][s] for k in problem.kinds(s)) for s in range(problem.stages))
    if not problem.possible or instant:
        return 0
    if period_bound(problem) <= max(problem.work) // problem.micro_batches:
        return 0
    clock, bound = Clock(limits), 0
    strides = [n for n in _strides(problem) if 1 < n < problem.micro_batches // 2]
    for left, n in zip(range(len(strides), 0, -1), strides, strict=True):
        if clock.left > 0:
            bound = max(bound, by_strides(problem, n, replace(limits, time=clock.left / left)))
    return bound


def _strides(problem: PipelineSchedule) -> list[int]:
    """A quarter, half, and all of what `PAIRS` allows, each if possible a multiple of how many are in flight at most.

    A forward in between waits for no round trip that ends there, which would be lost; fewer than two such multiples
    seldom meet.
    """
    most = math.isqrt(PAIRS // sum(3 * len(hosted) ** 2 for hosted in problem.hosted))
    flight = min((holding.capacity for holding in holdings(problem, endless=True) if holding.counts), default=1)
    rounds = sorted({n // flight for n in (most // 4, most // 2, most) if n >= 2 * flight})
    return [n * flight for n in rounds] or [most]


def by_strides(problem: PipelineSchedule, n: int, limits: Limits) -> int:
    """(17) for this n."""
    times, rest = divmod(problem.micro_batches - 1, n)
    last = replace(problem, micro_batches=rest + 1)
    return times * stride(problem, n, limits) + max(step_bound(last), drain_bound(last))


def stride(problem: PipelineSchedule, n: int, limits: Limits) -> int:
    """As much of D(n) as CP-SAT proves; the problem must be possible, and each operation take time."""
    few = replace(problem, micro_batches=n + 1)
    known = windows(few)
    model = CpsatModel(few, known, 0, few.largest)
    _full_memory_waits(model)
    model.sat.minimize(model.begins[Op("F", 0, n)])
    solver = model.solver(limits, linear=True)
    least = known.head["F"][0][n]
    if solver.solve(model.sat) == cp_model().MODEL_INVALID:
        return least
    return max(least, whole(solver.best_objective_bound))


def _full_memory_waits(model: CpsatModel) -> None:
    """The forward that waits for a count of `holding` waits for what that count goes on for."""
    problem = model.problem
    for holding in holdings(problem, endless=True):
        if holding.counts and holding.extra:
            (stage,) = holding.held
            for i in range(problem.micro_batches - holding.capacity):
                freed = model.begins[Op("I", stage, i)] + problem.backward[stage] + holding.extra
                model.sat.add(model.begins[Op("F", stage, i + holding.capacity)] >= freed)
