"""Beam search over prefixes of allocations: good ones where so many have the same bound that best-first finds none.

::

    boundary     0        1        2        3        …
    prefixes     those of least bound that end there are opened, a few of each kind and usage behind them

Bounds count all cycles between stages. What is dropped may lead to better ones: nothing is proved.
"""

from collections import defaultdict
from itertools import count

from pipeplan_formulations.allocation.best_first.search import Prefix, extended, roots
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.refinement import Relaxation, open_bracket, relaxation
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import Rate
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import Limits

WIDTH, ALIKE = 20, 3
"""Most prefixes that are opened at one boundary, and of each kind and usage behind them."""
COUNTS = 2
"""Extensions of a prefix by stages that differ in their in-flight counts alone."""
RETURNED = 8
"""Most allocations that are returned."""


def promising(problem: ChainAllocation, limits: Limits, cutoff: int | None = None) -> list[Allocation]:
    """Return some allocations of values below a cutoff, the best first; none if the time is over before.

    Of the limits ``time`` is used.
    """
    bracket = open_bracket(problem, limits, cutoff=cutoff)
    try:
        base = relaxation(problem, bracket)
        found = {} if base is None else dict.fromkeys(_beam(problem, bracket, base))
    except OutOfTimeError:
        return []
    if bracket.best is not None:  # of the relaxation; the beam goes below it
        found[bracket.best] = None
    fitting = (stages for stages in found if None not in problem.recompute(stages))
    valued = sorted((problem.evaluate(stages), stages) for stages in fitting)
    return [stages for value, stages in valued if cutoff is None or value < cutoff][:RETURNED]


def _beam(problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation) -> list[Allocation]:
    """The allocations that the beam ends with."""
    high, order = bracket.horizon, count()
    rates = Rate.of(problem, high - 1, int(base.tables.whole_trip.min()))
    waiting: dict[int, list[tuple[int, int, int, Prefix]]] = defaultdict(list)
    waiting[0] = [(bound, 0, next(order), root) for bound, root in roots(problem, base, len(rates))]
    for start in range(problem.layers):
        for prefix in _best(waiting.pop(start, [])):
            bracket.clock.check()
            for bound, child in extended(problem, base, prefix, high, rates, every=True, counts=COUNTS):
                waiting[child.start].append((bound, child.trip + child.twice, next(order), child))
    return [prefix.stages() for *_, prefix in waiting[problem.layers]]


def _best(entries: list[tuple[int, int, int, Prefix]]) -> list[Prefix]:
    """The prefixes to open, of those that end at one boundary."""
    alike: dict[tuple[int, int], int] = defaultdict(int)
    found: list[Prefix] = []
    for *_, prefix in sorted(entries):
        alike[prefix.kind, prefix.usage] += 1
        if alike[prefix.kind, prefix.usage] <= ALIKE and len(found) < WIDTH:
            found.append(prefix)
    return found
