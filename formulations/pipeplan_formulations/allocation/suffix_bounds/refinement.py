r"""Refinement of the bound: way back exactly, one-stage delays by intervals of the largest e, the others by boxes.

The intervals cover all values of the largest e, so the optimum's lies in one of them. If it lies in (a, b], then
T ≥ V*(b), the least way-back bound with no e above b. Also T ≥ A*(b) + a, with A*(b) the least round trip with no e
above b:

::

    e    0 ───────────── a ───────────── b ─────────────▶ high − A*
           V*(a), A*(a)     V*(b), A*(b) + a                         one run of the programme per interval end

With alternation or two phases intervals become boxes (`boxes`). The box of the least bound is split until that no
longer raises it.
"""

import heapq
from dataclasses import dataclass

from pipeplan_formulations.allocation.best_first.prefix_tables import prefix_tables
from pipeplan_formulations.allocation.bounds import free_bounds, memory_excludes_all
from pipeplan_formulations.allocation.furthest_end import FurthestEnd
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.boxes import Box, is_narrow
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import ProgrammeTables, run
from pipeplan_formulations.allocation.suffix_bounds.trace import follow, quickest, roots
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress
from pipeplan_formulations.common.span_options import IMPOSSIBLE

KEEP, KEEP_FEW = 8, 2
"""Number of usages whose best allocation is tried as an incumbent, and where another plan is known."""
RESOLUTION = 16_000
"""Intervals are split down to 1 / `RESOLUTION` of the bound."""
WORTH = 256
"""The upper end of an interval of e is lowered if that is more than 1 / `WORTH` of it; else the interval is split."""
SHRINKS = {False: (10, 1_000), True: (3, WORTH)}
"""Most times that the upper end of all e is lowered before intervals are split, and the part of it, 1 / this, that each
must gain: with all ranges of excess as one, which takes a fifth of the time, and with each range."""
SLIM = 2_000
"""Intervals are split along e alone down to 1 / `SLIM` of the bound, often a proof, before the largest backward is
limited; see `MANY`."""
MANY = 32
"""The splits along e alone come first if a replica has more micro-batches than this.

With few micro-batches the alternation bound decides, with many the slowest stage does.
"""
SMALL = 2**16
"""Most layers x usages x widths of a problem whose programme takes less time than a bound on its ceiling."""
STRIDES = (1.02, 1.05, 1.12, 1.3, 1.8, 3.0, 8.0, 40.0)
"""Targets tried, as multiples of the free bound, before one that excludes nothing."""


@dataclass(frozen=True)
class Relaxation:
    """Suffix tables that are valid for every allocation within a target, with their grid and spans."""

    grid: Grid
    spans: Spans
    tables: ProgrammeTables


def is_small(problem: ChainAllocation) -> bool:
    """True if the programme takes little time."""
    return problem.layers * Grid(problem).size * len(problem.widths) <= SMALL


def open_bracket(
    problem: ChainAllocation, limits: Limits, on_progress: Progress | None = None, cutoff: int | None = None
) -> Bracket[Allocation]:
    """Create the bracket of an allocation problem, with nothing known yet."""

    def evaluate(stages: Allocation) -> int | None:
        return None if None in problem.recompute(stages) else problem.evaluate(stages)

    return Bracket(evaluate, limits, on_progress, cutoff, problem.largest)


def _offer(bracket: Bracket[Allocation], traced: tuple[int, Allocation] | None) -> None:
    """Offer an allocation that comes with a lower bound on its objective, unless that bound excludes an improvement."""
    if traced is not None and traced[0] < bracket.ceiling:
        bracket.offer(traced[1])


def relaxation(problem: ChainAllocation, bracket: Bracket[Allocation]) -> Relaxation | None:
    """Raise the bracket to the least way back or bottleneck, and offer the best allocations of some usages.

    Returns None if no allocation fits, or none below the cutoff.
    """
    # Bounds without the programme.
    grid = Grid(problem)
    if grid.overfull or memory_excludes_all(problem):
        return None
    bracket.raise_low(int(free_bounds(problem, grid)[-1]))
    if bracket.beyond:
        return None
    most = problem.largest
    targets = [max(1, int(bracket.low * stride)) for stride in STRIDES]
    ceiling = None
    if bracket.cutoff is not None and bracket.cutoff <= most:  # one run decides if there is anything below the cutoff
        most, targets = bracket.cutoff - 1, []
        ceiling = _most_delay(problem, most, bracket.clock)
    # Increase the target until some allocation stays within it.
    spans = Spans(problem, grid, most, bracket.clock)
    for target in [*(t for t in targets if t < most), most]:
        limit = target if bracket.high is None else min(target, bracket.high)
        spans = spans.narrowed(limit)
        tables = run(problem, grid, spans, bracket.clock, limit, ceiling, coarse=True)
        if tables is not None and int(tables.whole.min()) < IMPOSSIBLE:
            break
        bracket.raise_low(limit + 1)
        if limit == most:
            return None
    assert tables is not None
    # The least value is the bound; the allocation behind it becomes an incumbent.
    bracket.raise_low(int(tables.whole.min()))
    for root in roots(tables, 1):
        _offer(bracket, follow(problem, grid, spans, tables, root, ceiling))
    reached = min(bracket.ceiling, most)
    if reached != limit:  # the optimum may lie between the target and the incumbent, so extend the tables
        spans = spans.narrowed(reached)
        tables = run(problem, grid, spans, bracket.clock, reached, ceiling, coarse=True)
        assert tables is not None
    for root in roots(tables, KEEP if bracket.cutoff is None else KEEP_FEW):
        _offer(bracket, follow(problem, grid, spans, tables, root, ceiling))
    return Relaxation(grid, spans, tables)


def narrowed(problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation) -> Relaxation:
    """The relaxation for what lies below the bracket's horizon, with the tables of a larger target."""
    target = bracket.horizon - 1
    spans, ceiling = base.spans.narrowed(target), target - int(base.tables.whole_trip.min())
    tables = run(problem, base.grid, spans, bracket.clock, target, ceiling, within=base.tables, coarse=True)
    return base if tables is None else Relaxation(base.grid, spans, tables)


def _most_delay(problem: ChainAllocation, target: int, clock: Clock) -> int | None:
    """The largest e of allocations within a target, by layers at a price; None where that is not worth its time."""
    if problem.endless or problem.first or problem.last or is_small(problem):
        return None
    return max(target - FurthestEnd(problem, clock).least_trip(target), 0)


class Refinement:
    """Raises the bracket's lower bound by the delays; where its time was over, it goes on when it is run again."""

    def __init__(self, problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation) -> None:
        self._problem, self._bracket, self._base = problem, bracket, base
        reached = bracket.horizon - 1
        spans = base.spans.narrowed(reached)
        self._heads = prefix_tables(problem, base.grid, spans, bracket.clock, reached, base.tables)
        # Ranges of excess are distinguished once lowering the upper end of e gains little without.
        steps = [False, True] if problem.chooses else [True]
        self._shrinks = [finely for finely in steps for _ in range(SHRINKS[finely][0])]
        value, trip = int(base.tables.whole.min()), int(base.tables.whole_trip.min())
        self._boxes = [Box(max(value, trip), 0, max(reached - trip, 0), value, trip)]
        self._closely = False

    def run(self, closely: bool = True) -> None:
        """Split boxes until that no longer raises the bound; else only along e."""
        problem, bracket = self._problem, self._bracket
        while self._shrinks:
            if bracket.closed:
                return
            self._shrink(self._shrinks[0])
        # Split along e; with alternation or two phases also along the largest backward and its width.
        if problem.drains and not self._closely:
            if problem.share(problem.widths[0]) > MANY and self._split(SLIM):
                return
            if not closely:
                return
            self._boxes, self._closely = [box.with_largest(problem) for box in self._boxes], True
        self._split(RESOLUTION)

    def _shrink(self, finely: bool) -> None:
        """Lower the upper end of e: allocations below the horizon have e below it, which may raise A*, and so on."""
        bracket, (whole,) = self._bracket, self._boxes
        value, trip, _ = self._corner(whole.high, 0, None, finely)
        bracket.raise_low(min(max(value, trip), bracket.horizon))
        high = max(min(whole.high, bracket.horizon - 1 - trip), 0)
        self._boxes = [Box(max(value, trip), 0, high, value, trip)]
        gains = whole.high - high > whole.high // SHRINKS[finely][1]
        self._shrinks = [each for each in self._shrinks[1:] if gains or each != finely]

    def _corner(
        self, ceiling: int, least_delay: int, largest: LargestBackward | None, finely: bool = True
    ) -> tuple[int, int, bool]:
        """V* and A* of a box, `IMPOSSIBLE` beyond the horizon, and true if ranges of excess were treated as one."""
        problem, bracket, grid = self._problem, self._bracket, self._base.grid
        target = bracket.horizon - 1
        spans, found = self._base.spans.narrowed(target), self._base.tables
        for coarse in [True, False][: 1 + finely] if problem.chooses else [False]:
            limits = target, ceiling, least_delay, self._heads, found, coarse, largest
            tables = run(problem, grid, spans, bracket.clock, *limits)
            if tables is None or int(tables.whole.min()) == IMPOSSIBLE:
                return IMPOSSIBLE, IMPOSSIBLE, False
            found = tables
            traced = follow(problem, grid, spans, found, roots(found, 1)[0], ceiling)
            _offer(bracket, traced)
            most = min(max(int(found.whole.min()), int(found.whole_trip.min()) + ceiling), target)
            if (root := quickest(found, most)) is not None:
                _offer(bracket, follow(problem, grid, spans, found, root, ceiling, most))
            if traced is not None and (not problem.cycles or problem.evaluate(traced[1]) <= target):
                break  # V* is reached, so distinguishing ranges of excess would not raise it
            value, trip = int(found.whole.min()), int(found.whole_trip.min())
            if coarse and value <= trip + least_delay and not is_narrow(least_delay, ceiling, bracket.low, largest):
                return value, trip, True  # A* decides: splitting the box takes less time and raises the bound more
        return int(found.whole.min()), int(found.whole_trip.min()), not finely

    def _split(self, resolution: int) -> bool:
        """Split boxes, a heap, until the bracket is closed; False if that of the least bound is too small for it."""
        bracket, boxes = self._bracket, self._boxes
        while boxes:
            box = boxes[0]
            bracket.raise_low(min(box.bound, bracket.horizon))
            if bracket.closed or box.bound >= bracket.horizon:
                return True
            if max(box.sides) <= max(1, box.bound // resolution) and not box.coarse:
                return False
            high = min(box.high, bracket.horizon - 1 - box.trip)  # a larger e reaches the horizon
            shorter = box.high - high > box.high // WORTH
            parts = (
                [box.with_ceiling(high, self._corner)]
                if shorter
                else box.split(self._problem, self._corner, bracket.low)
            )
            heapq.heappop(boxes)
            for part in parts:
                heapq.heappush(boxes, part)
        bracket.raise_low(bracket.horizon)
        return True
