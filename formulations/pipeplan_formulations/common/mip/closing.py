"""A solver of linear models at work on a bracket: it starts from the incumbent; its solutions and bounds go back."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.model import LinearModel, MipSolver
from pipeplan_formulations.common.report import Solution, Status, Stop
from pipeplan_formulations.common.scaling import Scale


def close(
    bracket: Bracket[Solution],
    solver: MipSolver,
    model: LinearModel,
    scale: Scale,
    read: Callable[[list[float]], Solution],
    start: Sequence[int] | None,
    floor: int,
    seconds: float | None = None,
) -> Stop:
    """Let a solver close a bracket within ``seconds``, or the time that is left; return why it stopped.

    Parameters
    ----------
    model : LinearModel
        The problem, with its objective in units of ``scale``, rounded down.
    read : callable
        Returns the solution at a point; `Bracket.offer` evaluates it.
    start : sequence of int, or None
        A value for each variable, at the incumbent.
    floor : int
        The bound without a solver. It is all that holds if the solver calls the problem infeasible although a solution
        is known (`Stop.ERROR`).
    """

    def on_solution(point: list[float]) -> None:
        bracket.offer(read(point))

    left = bracket.clock.left if seconds is None else seconds
    if left <= 0:
        return Stop.TIME
    limits = replace(bracket.limits, time=left)
    answer = solver.solve(model, limits, start, on_solution, lambda bound: bracket.raise_low(scale.up(bound)))
    if answer.status is Status.INFEASIBLE:
        bracket.impossible = bracket.best is None
        bracket.low = bracket.low if bracket.impossible else floor
        return Stop.OPTIMALITY if bracket.impossible else Stop.ERROR
    if answer.point is not None:
        on_solution(answer.point)
    bracket.raise_low(scale.up(answer.bound))
    return answer.stop
