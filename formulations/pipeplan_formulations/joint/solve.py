"""The joint problem alone: a search until the gap is closed or the time is up."""

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.joint.instance import Choice, JointPipeline, Solution
from pipeplan_formulations.joint.search import Search
from pipeplan_formulations.schedule import Orders

NAME = "benders"


def solve(
    problem: JointPipeline, limits: Limits, progress: Progress | None = None, backend: str = "cpsat"
) -> Report[Solution]:
    """Minimise (13).

    Parameters
    ----------
    problem : JointPipeline
    limits : Limits
    progress : callable, optional
        See `Progress`.
    backend : {'cpsat', 'cbc', 'exact'}
        Who solves the schedule problems.
    """
    clock = Clock(limits)
    best: list[tuple[int, Solution]] = []

    def offer(choice: Choice, orders: Orders, value: int) -> None:
        best[:] = [(value, (choice, orders))]
        tell()

    def cutoff() -> int | None:
        return best[0][0] - int(limits.gap * best[0][0]) if best else None

    def tell() -> None:
        if progress is not None:
            progress(best[0][0] if best else None, bound())

    def bound() -> int:
        known = [value for value in (search.bound, best[0][0] if best else None) if value is not None]
        return min(known, default=0)

    search = Search(problem, limits, offer, cutoff, backend)
    stop = Stop.OPTIMALITY
    try:
        while search.open:
            if clock.left <= 0:
                stop = Stop.TIME
                break
            search.step(clock.left)
            tell()
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    value, solution = best[0] if best else (None, None)
    low = bound()
    if value is not None and low == value:
        status, stop = Status.OPTIMAL, Stop.OPTIMALITY
    elif value is not None:
        status = Status.FEASIBLE
        stop = Stop.GAP if stop is Stop.OPTIMALITY else stop
    else:
        status = Status.INFEASIBLE if stop is Stop.OPTIMALITY else Status.UNKNOWN
    return Report(status, stop, value, low, clock.wall, NAME, "1", limits.seed, solution)
