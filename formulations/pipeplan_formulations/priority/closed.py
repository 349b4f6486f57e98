"""Closed form: sums that may be interrupted, of which nothing may be lost."""

from fractions import Fraction

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.priority.instance import Losses, Sums

NAME = "closed"


def solve(
    problem: Sums, limits: Limits, hint: Losses | None = None, on_progress: Progress | None = None
) -> Report[Losses]:
    """Return T* and the prices of the first layer that attains it.

    Raises
    ------
    ValueError
        If something may be lost: that is a linear programme.
    """
    del hint
    if problem.budget:
        raise ValueError(f"the closed form loses nothing, and {float(problem.budget):g} may be lost; use 'linear'")
    bracket = Bracket(problem.evaluate, limits, on_progress)
    binding = int(problem.paths(problem.times).argmax())
    bracket.low = problem.end(problem.times)
    prices = tuple(float(layer <= binding) for layer in range(problem.layers))
    bracket.offer(Losses((Fraction(0),) * problem.layers, prices))
    return bracket.report(Stop.OPTIMALITY, NAME)
