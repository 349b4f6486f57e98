"""The portfolio: handwritten lists and dispatching rules, the most promising first."""

from collections.abc import Iterator
from itertools import product

from pipeplan_formulations.schedule.constructive.alternating import one_forward_one_backward, zero_bubble
from pipeplan_formulations.schedule.constructive.numbers import Numbered
from pipeplan_formulations.schedule.constructive.priorities import by_kind, by_micro_batch, by_tail
from pipeplan_formulations.schedule.constructive.rule import Priorities, Rule
from pipeplan_formulations.schedule.constructive.tails import resident
from pipeplan_formulations.schedule.problem import PipelineSchedule


def handwritten(problem: PipelineSchedule) -> Iterator[Numbered]:
    """1F1B with as many micro-batches in flight as stages follow, twice that, and all that fit; ZB-H1 and ZB-H2.

    Only where each device has one stage. They end, but the memory that the W hold may be more than there is.
    """
    if max(map(len, problem.hosted)) > 1:
        return
    behind = [problem.stages - s for s in range(problem.stages)]
    for most in (behind, [2 * b - 1 for b in behind], [problem.micro_batches] * problem.stages):
        yield one_forward_one_backward(problem, most)
    yield zero_bubble(problem, 1)
    yield zero_bubble(problem, 2)


def automatic(problem: PipelineSchedule) -> Iterator[Rule]:
    """The automatic schedule of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023), section 3.1, as we understand it.

    Forwards as memory allows until the first I, or only as many as do not delay it; then I and F in turn; W where the
    next of them is further away than W takes, or where memory is used up.
    """
    fits = tuple(resident(problem))
    behind = tuple(min(fit, problem.stages - s) for s, fit in enumerate(fits))
    for held, patience in product((fits, behind), (1.0, 0.5)):
        yield Rule(by_kind(problem, "IFW"), patience, held, alternate=True)


def dispatched(problem: PipelineSchedule) -> Iterator[Rule]:
    """Priority rules with each patience and each choice of what may be in flight."""
    fits = resident(problem)
    priorities, choices = _priorities(problem, fits), _in_flight(problem, fits)
    for patience, held, first in product((0.6, 0.0, 0.3, 1.0), choices, priorities):
        yield Rule(first, patience, held)


def _priorities(problem: PipelineSchedule, fits: list[int]) -> list[Priorities]:
    return [
        by_kind(problem, "IFW"),
        by_kind(problem, "FIW"),
        by_kind(problem, "IWF"),
        by_tail(problem, fits, weights_first=False, fill=True),
        by_tail(problem, fits, weights_first=True, fill=False),
        by_micro_batch(problem, fill=True),
        by_micro_batch(problem, fill=False),
    ]


def _in_flight(problem: PipelineSchedule, fits: list[int]) -> list[tuple[int, ...] | None]:
    """Most micro-batches in flight on each stage: as many as fit, or fewer the nearer the stage is to the last one."""
    stages = problem.stages
    behind = [stages - s for s in range(stages)]
    choices = [
        behind,
        [2 * b - 1 for b in behind],
        [b + 1 for b in behind],
        *([max(1, -(-fits[0] * b * n // (2 * stages))) for b in behind] for n in (2, 3, 4)),
    ]
    found = {tuple(min(fit, h) for fit, h in zip(fits, held, strict=True)): None for held in choices}
    return [None, *found]
