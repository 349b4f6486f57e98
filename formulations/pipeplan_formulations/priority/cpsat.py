"""CP-SAT back end: the order of chunks on a link that finishes each one, from the front-first order.

start_c ≥ r of its layer;  chunks of a layer in turn;  no two chunks at once (`_Model`: no overlap);
T ≥ end_c + q of its layer for each chunk c;  T* ≤ T < the best known
"""

from typing import Any

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.cpsat import whole
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, cpsat_version, why_stopped
from pipeplan_formulations.priority.front_first import front_first
from pipeplan_formulations.priority.instance import Chunks, Order

NAME = "cpsat"


def solve(
    problem: Chunks, limits: Limits, hint: Order | None = None, on_progress: Progress | None = None
) -> Report[Order]:
    """Minimise the end of the forward; the answer is never worse than the front-first order, nor than ``hint``."""
    bracket = Bracket(problem.evaluate, limits, on_progress)
    bracket.raise_low(problem.lower_bound())
    for known in (front_first(problem), hint):
        if known is not None:
            bracket.offer(known)
    stop = Stop.GAP if bracket.closed else _search(problem, bracket)
    return bracket.report(stop, NAME, cpsat_version())


def _search(problem: Chunks, bracket: Bracket[Order]) -> Stop:
    """Look for a better order than the best known one, or refute that there is any."""
    cp = cp_model()
    model = _Model(cp, problem, bracket.low, bracket.ceiling - 1)
    solver = cpsat_solver(bracket.limits)
    status = solver.solve(model.sat)
    if status == cp.INFEASIBLE:
        bracket.raise_low(bracket.ceiling)
        return Stop.OPTIMALITY
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        bracket.offer(model.order(solver))
    if status in (cp.OPTIMAL, cp.FEASIBLE, cp.UNKNOWN):
        bracket.raise_low(min(whole(solver.best_objective_bound), bracket.ceiling))
    return Stop.GAP if status == cp.OPTIMAL else why_stopped(solver, bracket.clock)


class _Model:
    """The CP-SAT model; times count from the first ready gradient on, which no order changes."""

    def __init__(self, cp: Any, problem: Chunks, low: int, high: int) -> None:
        self.sat = cp.CpModel()
        self.begins: list[tuple[int, int, Any]] = []
        end = self.sat.new_int_var(low, high, "")
        intervals = []
        for layer, times in enumerate(problem.times):
            ready, tail = int(problem.ready[layer]), int(problem.tails[layer])
            before = None
            for time in times:
                begin = self.sat.new_int_var(ready, high, "")
                intervals.append(self.sat.new_fixed_size_interval_var(begin, time, ""))
                self.sat.add(end >= begin + time + tail)
                if before is not None:
                    self.sat.add(begin >= before)
                before = begin + time
                self.begins.append((layer, time, begin))
        self.sat.add_no_overlap(intervals)
        self.sat.minimize(end)

    def order(self, solver: Any) -> Order:
        """Return the layers of chunks in the order of their begins; what takes no time comes first."""
        rows = [(solver.value(begin), time, place, layer) for place, (layer, time, begin) in enumerate(self.begins)]
        return tuple(row[-1] for row in sorted(rows))
