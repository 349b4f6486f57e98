r"""The bound by dynamic programme: (3) exactly, (4) by intervals of the largest e, (5) by boxes that know more.

Whatever the optimum's largest e is, it lies in one of the intervals that cover all values. If it lies in (a, b], then
T ≥ V*(b), the least (3) with no e above b, and T ≥ A*(b) + a, the least round trip with no e above b, plus a:

::

    e    0 ───────────── a ───────────── b ─────────────▶ high − A*
           V*(a), A*(a)     V*(b), A*(b) + a                         each programme runs once for each corner

With (5) or (6) intervals become boxes (`boxes`). The box of the least bound is cut until that no longer raises it.
"""

import heapq
import itertools
from dataclasses import dataclass

from pipeplan_formulations.allocation.best_first.prefix_tables import prefix_tables
from pipeplan_formulations.allocation.bounds import free_bounds, overcrowded
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.boxes import Box, Corner, slim
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import Layers, run
from pipeplan_formulations.allocation.suffix_bounds.trace import follow, roots
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.report import Limits, Progress

KEEP = 8
"""Usages whose best allocation is tried as an incumbent."""
RESOLUTION = 16_000
"""Intervals are split down to such a part of the bound."""
SHRINKS = 3
"""How often the highest interval's end is brought down before intervals are split."""
WORTH = 64
"""That is stopped when it brings less than a 64th of the end."""
FIRST = 8
"""Cuts along e alone, which are often enough, before the largest backward is looked at,"""
MANY = 64
"""if a replica has more micro-batches than this: with few of them (5) decides, with many the slowest stage does."""
STRIDES = (1.02, 1.05, 1.12, 1.3, 1.8, 3.0, 8.0, 40.0)
"""Targets tried, as multiples of the free bound, before one that excludes nothing."""


@dataclass(frozen=True)
class Relaxation:
    """What the programme leaves to a search: tables that are right for every allocation within a target."""

    grid: Grid
    spans: Spans
    tables: Layers


def open_bracket(
    problem: ChainAllocation, limits: Limits, progress: Progress | None = None, cutoff: int | None = None
) -> Bracket[Allocation]:
    """The bracket of an allocation problem, nothing known yet."""

    def evaluate(stages: Allocation) -> int | None:
        return None if None in problem.recompute(stages) else problem.evaluate(stages)

    return Bracket(evaluate, limits, progress, cutoff, problem.largest)


def _offer(bracket: Bracket[Allocation], traced: tuple[int, Allocation] | None) -> None:
    """Offer an allocation that comes with a bound on its objective, unless the bound says that it is no better."""
    if traced is not None and traced[0] < bracket.ceiling:
        bracket.offer(traced[1])


def relaxation(problem: ChainAllocation, bracket: Bracket[Allocation]) -> Relaxation | None:
    """Raise the bracket to the least (3), or bottleneck; offer it the best of some usages. None if nothing fits."""
    grid = Grid(problem)
    if grid.overfull or overcrowded(problem):
        return None
    bracket.raise_low(int(free_bounds(problem, grid)[-1]))
    if bracket.beyond:
        return None
    most = problem.largest
    targets = [max(1, int(bracket.low * stride)) for stride in STRIDES]
    if bracket.cutoff is not None and bracket.cutoff <= most:  # a single look decides whether there is anything
        most, targets = bracket.cutoff - 1, []
    spans = Spans(problem, grid, most, bracket.clock)
    for target in [*(t for t in targets if t < most), most]:
        limit = target if bracket.high is None else min(target, bracket.high)
        spans = spans.narrowed(limit)
        tables = run(problem, grid, spans, bracket.clock, limit)
        if tables is not None and int(tables.whole.min()) < IMPOSSIBLE:
            break
        bracket.raise_low(limit + 1)
        if limit == most:
            return None
    assert tables is not None
    bracket.raise_low(int(tables.whole.min()))
    for root in roots(tables, 1):
        _offer(bracket, follow(problem, grid, spans, tables, root))
    reached = min(bracket.ceiling, most)
    if reached != limit:  # the optimum may lie between the target and the first allocation
        spans = spans.narrowed(reached)
        tables = run(problem, grid, spans, bracket.clock, reached)
        assert tables is not None
    for root in roots(tables, KEEP):
        _offer(bracket, follow(problem, grid, spans, tables, root))
    return Relaxation(grid, spans, tables)


def refine(problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation) -> None:
    """Raise the bracket by (4) and (5), until splitting boxes no longer helps."""
    reached = bracket.horizon - 1
    heads = prefix_tables(problem, base.grid, base.spans.narrowed(reached), bracket.clock, reached, base.tables)

    def corner(ceiling: int, floor: int, peak: LargestBackward | None) -> tuple[int, int, bool]:
        """V* and A* of a box; `IMPOSSIBLE` beyond the horizon. Whether it took ranges of excess for one."""
        target = bracket.horizon - 1
        spans, found = base.spans.narrowed(target), base.tables
        for coarse in [True, False] if problem.chooses else [False]:
            tables = run(problem, base.grid, spans, bracket.clock, target, ceiling, floor, heads, found, coarse, peak)
            if tables is None or int(tables.whole.min()) == IMPOSSIBLE:
                return IMPOSSIBLE, IMPOSSIBLE, False
            found = tables
            traced = follow(problem, base.grid, spans, found, roots(found, 1)[0], ceiling)
            _offer(bracket, traced)
            if traced is not None:  # so telling ranges of excess apart would not raise V*
                break
            value, alone = int(found.whole.min()), int(found.whole_trip.min())
            if coarse and value <= alone + floor and not slim(floor, ceiling, bracket.low):
                return value, alone, True  # A* decides: to cut the box takes less time, and raises more
        return int(found.whole.min()), int(found.whole_trip.min()), False

    value, alone = int(base.tables.whole.min()), int(base.tables.whole_trip.min())
    high = max(bracket.horizon - 1 - alone, 0)
    for _ in range(SHRINKS):  # what stays below the horizon stays below a ceiling, which may make A* larger, and so on
        if bracket.closed:
            return
        value, alone, _ = corner(high, 0, None)
        bracket.raise_low(min(max(value, alone), bracket.horizon))
        lower = min(high, bracket.horizon - 1 - alone)
        if high - lower <= high // WORTH:
            break
        high = lower
    boxes = [Box(max(value, alone), 0, max(high, 0), value, alone)]
    if problem.drains:
        if problem.share(problem.widths[0]) > MANY and _split(problem, bracket, corner, boxes, FIRST):
            return
        boxes = [box.peaked(problem) for box in boxes]
    _split(problem, bracket, corner, boxes, None)


def _split(
    problem: ChainAllocation, bracket: Bracket[Allocation], corner: Corner, boxes: list[Box], cuts: int | None
) -> bool:
    """Cut boxes, a heap, until the bracket is closed or they are too small; False after so many cuts."""
    for count in itertools.count():
        if not boxes:
            bracket.raise_low(bracket.horizon)
            return True
        box = boxes[0]
        bracket.raise_low(min(box.bound, bracket.horizon))
        small = max(box.sides) <= max(1, box.bound // RESOLUTION) and not box.rough
        if bracket.closed or box.bound >= bracket.horizon or small:
            return True
        if count == cuts:
            return False
        heapq.heappop(boxes)
        high = min(box.high, bracket.horizon - 1 - box.alone)  # a larger e reaches the horizon
        shorter = box.high - high > box.high // WORTH
        for part in [box.below(high, corner)] if shorter else box.cut(problem, corner, bracket.low):
            heapq.heappush(boxes, part)
    raise AssertionError
