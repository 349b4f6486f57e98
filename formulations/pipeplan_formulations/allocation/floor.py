r"""The bound by dynamic programme: (3) exactly, (4) by intervals of the largest e, (5) by intervals of the largest B.

Whatever the optimum's largest e is, it lies in one of the intervals that cover all values. If it lies in (a, b], then
T ≥ V*(b), the least (3) with no e above b, and T ≥ A*(b) + a, the least round trip with no e above b, plus a:

::

    e    0 ───────────── a ───────────── b ─────────────▶ high − A*
           V*(a), A*(a)     V*(b), A*(b) + a                         each programme runs once for each corner

With (5) or (6) intervals become boxes: the largest backward of any stage lies between u and v, so that all stages
obey (6) with u, and (5) too. Where that one lies behind stage s, (4) says so for it, which holds no more micro-batches
than s and has an F of at least B / ρ, ρ the largest ratio of B to F in a layer:

    e  ≥  (M − k_s) (1 + 1/ρ) B + (k_s − 1) B  ≥  (M − k_s) (1 + 1/ρ) u + (k_s − 1) u

The box of the least bound is split on its longer side, until splitting no longer raises it.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations.allocation.bracket import Bracket
from pipeplan_formulations.allocation.crowding import overcrowded
from pipeplan_formulations.allocation.heads import heads_of
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.spans import Spans, best_before
from pipeplan_formulations.allocation.suffix import Layers, run
from pipeplan_formulations.allocation.tails import Peak
from pipeplan_formulations.allocation.trace import follow, roots
from pipeplan_formulations.allocation.usage import Grid
from pipeplan_formulations.recompute import IMPOSSIBLE

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
FLAT = 5
"""Boxes are cut along e, which raises bounds sooner, until they are so many times longer along the largest backward."""
STRIDES = (1.02, 1.05, 1.12, 1.3, 1.8, 3.0, 8.0, 40.0)
"""Targets tried, as multiples of the free bound, before one that excludes nothing."""


Corner = Callable[[int, int, int, int | None], tuple[int, int]]
"""V* and A* of a box: below a ceiling on e, from a floor of the largest e on, the largest B between two numbers."""


@dataclass(frozen=True)
class Ground:
    """What the programme leaves to a search: tables that are right for every allocation within a target."""

    grid: Grid
    spans: Spans
    tables: Layers


def free_bounds(problem: ChainAllocation, grid: Grid) -> Array:
    """A bound on the units of each usage vector, shape (size,); `IMPOSSIBLE` on none.

    No allocation is faster than one micro-batch on the best kinds, nor than all of them on all units at once.
    """
    best = problem.forward + problem.backward
    before = int(best_before(problem)[-1])
    speed = (best.min(axis=0) / np.maximum(best, 1)).max(axis=1) * problem.unit
    many = 1 if problem.objective == "bottleneck" else problem.micro_batches
    power = np.maximum(speed @ grid.coordinates, before * many / max(problem.largest, 1))
    share = np.maximum(before * many / np.maximum(power, 1e-9) * (1 - 1e-9) - 1, 0).astype(np.int64)
    bounds = share if problem.objective == "bottleneck" else np.maximum(share, before)
    return np.where(grid.total == 0, IMPOSSIBLE, bounds)


def ground(problem: ChainAllocation, bracket: Bracket, keep: int) -> Ground | None:
    """Raise the bracket to the least (3), or bottleneck; offer it the ``keep`` best usages. None if nothing fits."""
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
    spans = Spans(problem, grid, most)
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
    assert bracket.high is not None
    reached = min(bracket.high, most)
    if reached != limit:  # the optimum may lie between the target and the first allocation
        spans = spans.narrowed(reached)
        tables = run(problem, grid, spans, bracket.clock, reached)
        assert tables is not None
    for root in roots(tables, keep):
        _offer(bracket, follow(problem, grid, spans, tables, root))
    return Ground(grid, spans, tables)


def _offer(bracket: Bracket, stages: Allocation | None) -> None:
    if stages is not None:
        bracket.offer(stages)


def refine(problem: ChainAllocation, bracket: Bracket, base: Ground) -> None:
    """Raise the bracket by (4) and (5), until splitting boxes no longer helps."""
    many = problem.share(problem.widths[0])

    reached = bracket.horizon - 1
    heads = heads_of(problem, base.grid, base.spans.narrowed(reached), bracket.clock, reached, base.tables)

    def corner(ceiling: int, floor: int, least: int = 0, most: int | None = None) -> tuple[int, int]:
        """V* and A* of a box; `IMPOSSIBLE` beyond the horizon."""
        target = bracket.horizon - 1
        peak = peak_between(problem, least, most) if most is not None else None
        spans, found = base.spans.narrowed(target), base.tables
        for coarse in [True, False] if problem.chooses else [False]:
            tables = run(problem, base.grid, spans, bracket.clock, target, ceiling, floor, heads, found, coarse, peak)
            if tables is None or int(tables.whole.min()) == IMPOSSIBLE:
                return IMPOSSIBLE, IMPOSSIBLE
            found = tables
            stages = follow(problem, base.grid, spans, found, roots(found, 1)[0], ceiling)
            if stages is not None:  # so telling ranges of excess apart would not raise V*
                bracket.offer(stages)
                break
        return int(found.whole.min()), int(found.whole_trip.min())

    value, alone = int(base.tables.whole.min()), int(base.tables.whole_trip.min())
    high = max(bracket.horizon - 1 - alone, 0)
    for _ in range(SHRINKS):  # what stays below the horizon stays below a ceiling, which may make A* larger, and so on
        if bracket.closed:
            return
        value, alone = corner(high, 0)
        bracket.raise_low(min(max(value, alone), bracket.horizon))
        lower = min(high, bracket.horizon - 1 - alone)
        if high - lower <= high // WORTH:
            break
        high = lower
    ways: tuple[bool, ...] = (False,)
    if problem.drains and many > 1:
        ways = (False, True) if many > MANY else (True,)
    for peaks in ways:
        root = _Box(max(value, alone), 0, max(high, 0), 0, high // (many - 1) if peaks else None, value, alone)
        closed = _split(bracket, corner, root, many, FIRST if problem.drains and not peaks else None)
        if closed:
            return


def _split(bracket: Bracket, corner: Corner, root: "_Box", many: int, cuts: int | None) -> bool:
    """Cut boxes until the bracket is closed or they are too small; False after so many cuts."""
    boxes = [root]
    for count in itertools.count():
        box = boxes[0]
        bracket.raise_low(min(box.bound, bracket.horizon))
        wide, tall = box.high - box.low, 0 if box.most is None else (many - 1) * (box.most - box.least)
        if bracket.closed or box.bound >= bracket.horizon or max(wide, tall) <= max(1, box.bound // RESOLUTION):
            return True
        if count == cuts:
            return False
        high = min(box.high, bracket.horizon - 1 - box.alone)  # a larger e reaches the horizon
        if box.high - high > box.high // WORTH:
            value, alone = corner(high, box.low, box.least, box.most)
            bound = max(box.bound, value, alone + box.low)
            heapq.heapreplace(boxes, replace(box, bound=bound, high=high, value=value, alone=alone))
            continue
        if box.most is not None and (tall > FLAT * wide or wide <= 1):  # an e of 1 cannot be cut
            middle = (box.least + box.most) // 2
            low = max(box.low, (many - 1) * (middle + 1))
            above, alone_above = corner(box.high, low, middle + 1, box.most)
            below, alone_below = corner(box.high, box.low, box.least, middle)
            upper = _Box(max(above, alone_above + low), low, box.high, middle + 1, box.most, above, alone_above)
            lower = replace(box, bound=max(below, alone_below + box.low), most=middle, value=below, alone=alone_below)
        else:
            # No box raises the bound before A* + a reaches V*, or what is known already: better cut there than halve.
            cut = max(box.value, bracket.low) - box.alone
            middle = cut if box.low < cut < box.high else (box.low + box.high) // 2
            most = None if box.most is None else min(box.most, middle // (many - 1))
            below, alone_below = corner(middle, box.low, box.least, most)
            upper = replace(box, bound=max(box.value, box.alone + middle), low=middle)
            lower = _Box(max(below, alone_below + box.low), box.low, middle, box.least, most, below, alone_below)
        heapq.heapreplace(boxes, upper)
        heapq.heappush(boxes, lower)
    raise AssertionError


@dataclass(frozen=True, order=True)
class _Box:
    """Allocations whose largest e lies in (``low``, ``high``], and whose largest backward in [``least``, ``most``]."""

    bound: int
    low: int
    high: int
    least: int
    most: int | None
    value: int
    alone: int


def peak_between(problem: ChainAllocation, least: int, most: int) -> Peak:
    """The largest backward lies there. No stage's B is more than ρ F, the most that it is in any layer."""
    again = np.where(problem.recomputable, problem.forward, 0)
    worst = (problem.backward + again) / np.maximum(problem.forward, 0.5)
    unknown = bool((problem.forward == 0)[problem.backward > 0].any())
    return Peak(least, most, least + (0 if unknown or not worst.any() else int((1 - 1e-12) * least / worst.max())))
