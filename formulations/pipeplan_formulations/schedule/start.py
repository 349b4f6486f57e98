"""Where the solvers begin: the best orders known without them."""

from functools import partial

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.report import Limits, Progress
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.evaluate import evaluate, feasible
from pipeplan_formulations.schedule.problem import Orders, PipelineSchedule
from pipeplan_formulations.schedule.serial import serial

SHARE = 0.1
"""Part of the time limit that list scheduling may take."""


def open_bracket(problem: PipelineSchedule, limits: Limits, progress: Progress | None) -> Bracket[Orders]:
    """The bracket of a schedule problem, nothing known yet."""
    bracket = Bracket(partial(evaluate, problem), limits, progress)
    bracket.impossible = not problem.possible
    return bracket


def start(problem: PipelineSchedule, bracket: Bracket[Orders], hint: Orders | None, seconds: float) -> None:
    """Offer one micro-batch after the other, the hint, and what the list schedulers find within so many seconds."""
    bracket.offer(serial(problem))
    if hint is not None and feasible(problem, hint):
        bracket.offer(hint)
    if not bracket.closed:
        gap = bracket.limits.gap
        found = constructive(problem, seconds, int(bracket.low / (1 - gap)) if gap else bracket.low)
        if found is not None:
            bracket.offer(found[1])
