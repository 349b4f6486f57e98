"""Bounds on many micro-batches from bounds on few: russian doll search.

The problem of n micro-batches is solved for growing n, each with what is proved of the smaller ones (`spans`) in its
windows. G. Verfaillie, M. Lemaître and T. Schiex, Russian doll search for solving constraint optimization problems
(1996), nest subproblems so; here the smaller ones are both the beginning and the end of the larger one, and what is
between takes at least what they say together. So each n has little left to prove: a time just above what the windows
show already is refuted in a moment (`refute`).

All that is asked of the problem without the weight gradients of later stages (`relaxed`): it is short, and where memory
keeps micro-batches waiting its optimum is close. Where work on a device is what takes time it is not, and the search
ends as soon as that shows.
"""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.cpsat_model import pairs
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import makespan, starts
from pipeplan_formulations.schedule.refute import answered, raised
from pipeplan_formulations.schedule.relaxed import last_micro_batches, without_later_weights
from pipeplan_formulations.schedule.spans import Spans
from pipeplan_formulations.schedule.windows import windows

STEP = 4
"""Micro-batches that the next doll has more."""
PATIENCE = 0.1
"""Part of the time that one question may take."""
FINE, FINEST = 0.002, 0.0002
"""Part of a makespan to which bounds are worth knowing, of fewer micro-batches and of all."""
EARLY = 0.25
"""Part of the micro-batches up to which dolls may prove nothing."""


def dolls(problem: PipelineSchedule, best: Orders, limits: Limits, most_pairs: int) -> Spans:
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
