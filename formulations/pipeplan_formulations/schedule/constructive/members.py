"""The portfolio: handwritten lists and dispatching rules, the most promising first."""

from collections.abc import Iterator
from itertools import product

from pipeplan_formulations.schedule.constructive.alternating import one_forward_one_backward, zero_bubble
from pipeplan_formulations.schedule.constructive.numbers import Numbered
from pipeplan_formulations.schedule.constructive.priorities import by_kind, by_micro_batch, by_tail
from pipeplan_formulations.schedule.constructive.rule import Priorities, Rule
from pipeplan_formulations.schedule.constructive.tails import resident
from pipeplan_formulations.schedule.instance import PipelineSchedule


def handwritten(problem: PipelineSchedule) -> Iterator[Numbered]:
    """1F1B with as many micro-batches in flight as stages follow, twice that, and all that fit; ZB-H1 and ZB-H2.

    With two lanes twice that is a full pipeline of either kind (BaPipe's FBP); with one, one less hides what travels.

    Only where each device has one stage. They end, but the memory that the W hold may be more than there is.
    """
    if max(map(len, problem.hosted)) > 1:
        return
    behind = [problem.stages - s for s in range(problem.stages)]
    one = 0 if any(problem.two_lanes) else 1
    for most in (behind, [2 * b - one for b in behind], [problem.micro_batches] * problem.stages):
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
    """Priority rules with each patience and each choice of what may be in flight; those of `_FIRST` first."""
    fits = resident(problem)
    priorities, choices = _priorities(problem, fits), _in_flight(problem, fits)
    rest = product((0.6, 0.3, 1.0, 0.0), choices, priorities)
    for patience, held, first in dict.fromkeys((*_FIRST, *rest)):
        yield Rule(priorities[first], patience, choices[held])


_FIRST = (
    (0.6, "2", "FIW"),
    (0.6, "all", "tail"),
    (0.6, "1", "tail"),
    (0.0, "all", "tail"),
    (0.6, "all", "FIW"),
    (0.0, "2", "FIW"),
    (0.3, "5/4 fit", "tail with W"),
    (1.0, "1", "tail"),
    (0.3, "2", "tail of all"),
    (0.6, "1", "FIW"),
    (0.6, "all", "tail with W"),
    (0.6, "2 fit", "tail"),
    (0.3, "5/4 fit", "FIW"),
    (0.0, "1 fit", "tail"),
    (0.6, "1 more", "tail of all"),
    (0.3, "2", "FIW"),
    (1.0, "1", "FIW"),
    (0.3, "all", "FIW"),
    (1.0, "2", "tail"),
    (1.0, "2", "FIW"),
    (0.0, "2", "tail"),
)
"""Patience, in flight, priorities: chosen greedily, as each lowers the mean of the best so far, on two samples of 40
random pipelines (4 to 12 devices, one or two stages each, room for 0.4 to 1.6 micro-batches per device)."""


def _priorities(problem: PipelineSchedule, fits: list[int]) -> dict[str, Priorities]:
    return {
        "FIW": by_kind(problem, "FIW"),
        "tail": by_tail(problem, fits, weights_first=False, fill=True),
        "tail with W": by_tail(problem, fits, weights_first=True, fill=False),
        "tail of all": by_tail(problem, fits, weights_first=False, fill=False),
        "IFW": by_kind(problem, "IFW"),
        "IWF": by_kind(problem, "IWF"),
        "oldest": by_micro_batch(problem, fill=True),
        "oldest with W": by_micro_batch(problem, fill=False),
    }


def _in_flight(problem: PipelineSchedule, fits: list[int]) -> dict[str, tuple[int, ...] | None]:
    """Most micro-batches in flight on each stage, by their number for each stage from there on, or as many as fit.

    "fit" divides what fits on the first stage among all.
    """
    stages = problem.stages
    behind = [stages - s for s in range(stages)]

    def at_most(counts: list[int]) -> tuple[int, ...]:
        return tuple(min(fit, max(1, count)) for fit, count in zip(fits, counts, strict=True))

    return {
        "all": None,
        "1": at_most(behind),
        "1 more": at_most([b + 1 for b in behind]),
        "2": at_most([2 * b - 1 for b in behind]),
        "1 fit": at_most([-(-fits[0] * b // stages) for b in behind]),
        "5/4 fit": at_most([-(-5 * fits[0] * b // (4 * stages)) for b in behind]),
        "2 fit": at_most([-(-2 * fits[0] * b // stages) for b in behind]),
    }
