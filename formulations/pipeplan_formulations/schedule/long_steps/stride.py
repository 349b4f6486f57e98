r"""Lower bound by strides, the least time between the starts of micro-batches i and i + n, for short memory.

Let D(n) be the least time from the start of F_0(0) to that of F_0(n) in any schedule. Take a schedule of any number of
micro-batches and remove all except i, i + 1, …, i + n. No operation waits for a removed one, no more memory is held
than before, and the rest is a schedule of n + 1 micro-batches from the start of F_0(i) on. So F_0(i + n) starts D(n) or
more after F_0(i), for every i, and with M − 1 = q n + r, r < n,

    step ≥ q D(n) + the least step of the last r + 1 micro-batches alone.

In an endless schedule n micro-batches take D(n) or more on average. This exceeds the holding bound and the bound by
work as soon as n is so large that forwards and backwards of different micro-batches must conflict::

    device 1   ··F1·I0   or   ··I0·F1      the one that waits makes its own round trip longer, on which device 0 waits

D(n) is at most n times the least period. It is less by the advantage of an empty pipeline for the first of the n
micro-batches.

CP-SAT gives a lower bound on D(n), by the model of `cpsat_model` for n + 1 micro-batches with the start of F_0(n) as
objective. The horizon is the sum of all times: no schedule that starts operations as early as its order allows is
longer.
"""

import math
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.cpsat import whole
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.solvers import cp_model
from pipeplan_formulations.schedule.bounds import windows
from pipeplan_formulations.schedule.cpsat_model import CpsatModel
from pipeplan_formulations.schedule.instance import Op, PipelineSchedule
from pipeplan_formulations.schedule.long_steps.drain import drain_bound
from pipeplan_formulations.schedule.long_steps.holding import holdings, period_bound, step_bound

PAIRS = 16_000
"""Largest number of pairs of a forward and an operation on its device for which CP-SAT proves useful bounds."""


def stride_bound(problem: PipelineSchedule, limits: Limits) -> int:
    """The stride bound, as far as CP-SAT proves it within the limits; small n, which are fast, before larger ones.

    It is 0 if it would not exceed the other bounds: if the work of a device bounds the period more tightly than its
    memory, if micro-batches are few, or if operations take no time.
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
    """Values of n: a quarter, half, and all of the size allowed by `PAIRS`, as multiples of the in-flight count.

    At other n the last round trip would be lost, since the forward waits for none that ends there. With fewer than two
    such multiples round trips seldom conflict.
    """
    most = math.isqrt(PAIRS // sum(3 * len(hosted) ** 2 for hosted in problem.hosted))
    flight = min((holding.capacity for holding in holdings(problem, endless=True) if holding.counts), default=1)
    rounds = sorted({n // flight for n in (most // 4, most // 2, most) if n >= 2 * flight})
    return [n * flight for n in rounds] or [most]


def by_strides(problem: PipelineSchedule, n: int, limits: Limits) -> int:
    """The stride bound for this n."""
    times, rest = divmod(problem.micro_batches - 1, n)
    last = replace(problem, micro_batches=rest + 1)
    return times * stride(problem, n, limits) + max(step_bound(last), drain_bound(last))


def stride(problem: PipelineSchedule, n: int, limits: Limits) -> int:
    """Lower bound on D(n) by CP-SAT; the problem must be possible, and each operation take time."""
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
    """Add the ``extra`` of counts of `holding`: a forward that waits for memory also waits for that time."""
    problem = model.problem
    for holding in holdings(problem, endless=True):
        if holding.counts and holding.extra:
            (stage,) = holding.held
            for i in range(problem.micro_batches - holding.capacity):
                freed = model.begins[Op("I", stage, i)] + problem.backward[stage] + holding.extra
                model.sat.add(model.begins[Op("F", stage, i + holding.capacity)] >= freed)
