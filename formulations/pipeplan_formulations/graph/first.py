"""First solutions along topological orders: the furthest-end programme with a greedy choice of variants.

::

    order       0  2  1 │ 4  3 │ 6  5 │          stages are laid from the end of the order, since the number in flight
                        ◀──────◀──────┤          on a stage depends on the stages behind it
                      start   end

For a target T and every use of the pools behind, a stage of load T or less begins as early as possible, in every mode.
Variants are whole steps in the order of time per byte saved (`common.span_knapsack`), so memory needs no lists of
choices. Halving finds the least T that an order reaches; later orders begin below the best one so far.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_knapsack import SpanKnapsack
from pipeplan_formulations.graph.crossing import Crossing
from pipeplan_formulations.graph.downsets import orders
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages
from pipeplan_formulations.graph.mode import Array, GraphMode

ORDERS = 10
"""Number of random topological orders besides the depth-first and the breadth-first one."""
FACTORS = (1.02, 1.1, 1.25, 1.6, 2.5, 6.0)
"""Targets in multiples of the lower bound, tried in turn until an order reaches one; then the largest load."""
FINE = 0.002
"""Halving stops when the interval is this small, relative to the target."""
CAPS = (0.9, 0.6, 0.3)
"""Quantiles of all peaks: limits on the peak of chosen variants, tried where no order has a solution without one."""
SECONDS = 1.0
"""Time after which no further order is begun once there is a solution."""


def first_plans(problem: GraphPartition, bracket: Bracket[Stages]) -> None:
    """Offer the solutions of several orders.

    Raises
    ------
    OutOfTimeError
    """
    until = bracket.clock.wall + SECONDS
    some = orders(problem, ORDERS, bracket.limits.seed)
    peaks = np.concatenate([mode.peak.ravel() for mode in problem.modes])
    caps = [int(np.quantile(peaks, share)) for share in CAPS] if problem.variants > 1 and peaks.any() else []
    for cap in (UNLIMITED, *caps):
        steps = [_Steps(mode, cap) for mode in problem.modes]
        for order in some:
            if bracket.closed or (bracket.best is not None and bracket.clock.wall > until):
                return
            _halve(problem, bracket, _Order(problem, order, steps))
        if bracket.best is not None:
            return


def _halve(problem: GraphPartition, bracket: Bracket[Stages], order: "_Order") -> None:
    """Offer the solution of the least target that an order reaches, if it beats the incumbent."""

    def reaches(target: int) -> bool:
        for depth in problem.depths or (None,):
            stages = order.reach(target, depth, bracket.clock.check)
            if stages is not None and problem.feasible(stages):
                bracket.offer(stages)
                return True
        return False

    low, largest = bracket.low - 1, problem.largest
    if bracket.best is None:
        for target in (*(int(bracket.low * factor) for factor in FACTORS), largest):
            if reaches(min(target, largest)):
                break
            low = target
    elif not reaches(bracket.ceiling - 1 - int(FINE * bracket.ceiling)):
        return
    while bracket.best is not None and not bracket.closed and bracket.ceiling - low > 1 + FINE * bracket.ceiling:
        target = (low + bracket.ceiling) // 2
        if not reaches(target):
            low = target


class _Steps:
    """Steps from the fastest variant of each group to leaner ones, for one mode.

    ``cap``: variants of a larger peak are only used where they are the fastest.
    """

    def __init__(self, mode: GraphMode, cap: int) -> None:
        self._mode = mode
        times = np.array([line.time for line in mode.lines])
        self._every = np.arange(times.shape[2])
        self.fastest = np.where(mode.possible, times.sum(axis=0), UNLIMITED).argmin(axis=0)
        # Extra time of each variant: the largest of any line.
        extra = (times - times[:, self.fastest, self._every][:, None]).max(axis=0)
        usable = mode.possible & (mode.peak <= cap)
        usable[self.fastest, self._every] = True
        self._extra = np.where(usable, np.maximum(extra, 0), UNLIMITED)
        self.peak = np.where(usable, mode.peak, 0).max(axis=0)
        self._known: dict[int, tuple[Array, Array, Array]] = {}

    def at(self, flying: int) -> tuple[Array, Array, Array]:
        """Extra time, bytes saved and new variant of each group's steps with so many in flight; shape (n, V − 1).

        The steps are corners of a lower hull, so later ones save fewer bytes per time.
        """
        if flying not in self._known:
            size = self._mode.fixed + flying * self._mode.held
            every, now, rows = self._every, self.fastest, []
            for _ in range(len(size) - 1):
                saved, more = size[now, every] - size, np.maximum(self._extra - self._extra[now, every], 0)
                ratio = np.where((saved > 0) & (self._extra < UNLIMITED), more / np.maximum(saved, 1), np.inf)
                then = np.where(np.isfinite(ratio.min(axis=0)), ratio.argmin(axis=0), now)
                rows.append((more[then, every], saved[then, every], then))
                now = then
            table = np.array(rows, np.int64).reshape(len(rows), 3, len(every)).transpose(1, 2, 0)
            self._known[flying] = table[0], table[1], table[2]
        return self._known[flying]


@dataclass(frozen=True)
class _Column:
    """Stages of one mode that end at one place of an order, by start: sums of each line, load, bytes, peaks."""

    lines: Array
    load: Array
    fixed: Array
    held: Array
    peak: Array
    largest: Array


@dataclass(frozen=True)
class _Label:
    """A stage and the stages behind it; ``flow`` counts the stage itself."""

    start: int
    flow: int
    end: int = 0
    mode: int = -1
    behind: "_Label | None" = None


class _Order:
    """Stages between the places of one topological order."""

    def __init__(self, problem: GraphPartition, order: list[int], steps: list[_Steps]) -> None:
        self._problem, self._order, self._steps = problem, np.array(order), steps
        self._crossing = Crossing(problem, order)
        self._prefix: dict[int, tuple[Array, Array, Array]] = {}
        self._columns: dict[tuple[int, int], _Column] = {}
        self._knapsacks: dict[object, SpanKnapsack] = {}

    def reach(self, target: int, depth: int | None, check: Callable[[], None]) -> Stages | None:
        """Stages of load ``target`` or less, ``depth`` of them if it is given; None if none are found."""
        problem = self._problem
        # One label for each use of the pools, kind of neighbour and number of stages; those of fewer devices first.
        labels = {((0,) * len(problem.pools), b"", 0): _Label(problem.groups, 0)}
        while labels:
            check()
            key = min(labels, key=lambda key: sum(key[0]))
            label, (used, _, count) = labels.pop(key), key
            for m, mode in enumerate(problem.modes):
                then = tuple(a + b for a, b in zip(used, mode.takes, strict=True))
                if any(a > b for a, b in zip(then, problem.pools, strict=True)) or count == depth:
                    continue
                if label.mode >= 0 and not self._neighbours(m, label, target):
                    continue
                earliest = 0 if depth is None else max(0, depth - count - 1)
                start = self._furthest(m, label, target, earliest)
                if start is None:
                    continue
                new = _Label(start, label.flow + mode.flow, label.start, m, label)
                if start == 0:
                    return self._stages(new)
                shut = b"" if problem.pairs is None else (problem.pairs[:, m] < 0).tobytes()
                place = then, shut, 0 if depth is None else count + 1
                if place not in labels or (start, new.flow) < (labels[place].start, labels[place].flow):
                    labels[place] = new
        return None

    def _neighbours(self, m: int, behind: _Label, target: int) -> bool:
        """True if a stage of mode m may stand before this one, with a border load of ``target`` or less."""
        problem = self._problem
        if problem.pairs is None:
            return True
        index = problem.pairs[m, behind.mode]
        if index < 0:
            return False
        border = problem.borders[index]
        load: int = border.load(int(self._crossing.relayed(border.leave)[behind.start]))
        return load <= target

    def _furthest(self, m: int, behind: _Label, target: int, earliest: int) -> int | None:
        """The earliest start of a stage of mode m before these stages; None if there is none."""
        mode, end = self._problem.modes[m], behind.start
        column, flying = self._column(m, end), mode.flying(behind.flow)
        starts = earliest + np.flatnonzero(column.load[earliest:] <= target)
        if not len(starts):
            return None
        spare = mode.limit - column.fixed[starts] - flying * column.held[starts]
        fits = column.peak[starts] <= spare
        steps = self._problem.variants - 1
        if not fits[0] and steps:
            # Stages that need leaner variants: extra time of whole steps, with the largest peak of any of them.
            need, ends = column.largest[starts] - spare, np.full_like(starts, end * steps)
            cost = self._knapsack(m, flying).whole(starts * steps, ends, need)
            shares = np.array([line.share for line in mode.lines])[:, None]
            load = (-(-(column.lines[:, starts] + cost) // shares)).max(axis=0)
            fits |= (cost >= 0) & (load <= target)
        return int(starts[fits.argmax()]) if fits.any() else None

    def _column(self, m: int, end: int) -> _Column:
        """The stages of mode m that end at a place, without leaner variants."""
        if (m, end) in self._columns:
            return self._columns[m, end]
        mode, steps, order = self._problem.modes[m], self._steps[m], self._order
        fastest = steps.fastest[order], order
        if m not in self._prefix:
            times = sums_before(np.array([line.time[fastest] for line in mode.lines]))
            pays = sums_before(np.array([line.pays[order] for line in mode.lines]))
            sizes = np.array([mode.fixed[fastest], mode.held[fastest], np.asarray(~mode.possible.any(axis=0))[order]])
            self._prefix[m] = times, pays, sums_before(sizes)
        times, pays, sizes = (table[:, end, None] - table[:, :end] for table in self._prefix[m])
        sums = []
        for line, time, paying in zip(mode.lines, times, pays, strict=True):
            leave, enter = self._crossing.leave(line.leave, end), self._crossing.enter(line.enter, end)
            crossing = -(-leave // line.divisor) + -(-enter // line.divisor)
            sums.append(line.base * (paying > 0) + time + line.times * crossing)
        lines, shares = np.array(sums), np.array([line.share for line in mode.lines])[:, None]
        load = np.where(sizes[2], UNLIMITED, (-(-lines // shares)).max(axis=0))
        peaks = mode.peak[fastest][:end], steps.peak[order][:end]
        peak, largest = (np.maximum.accumulate(row[::-1])[::-1] for row in peaks)
        held = sizes[1] + self._crossing.enter(mode.received, end)
        column = self._columns[m, end] = _Column(lines, load, sizes[0], held, peak, largest)
        return column

    def _knapsack(self, m: int, flying: int) -> SpanKnapsack:
        """Knapsack of the steps of a mode with so many in flight; modes of equal steps share it."""
        if (m, flying) not in self._knapsacks:
            cost, saved, _ = (table[self._order].ravel() for table in self._steps[m].at(flying))
            content = cost.tobytes(), saved.tobytes()
            if content not in self._knapsacks:
                self._knapsacks[content] = SpanKnapsack(cost, saved)
            self._knapsacks[m, flying] = self._knapsacks[content]
        return self._knapsacks[m, flying]

    def _stages(self, label: _Label | None) -> Stages:
        """The stages of a label, from front to back."""
        found = []
        while label is not None and label.behind is not None:
            groups = np.sort(self._order[label.start : label.end])
            variants = self._variants(label, groups)
            found.append(GraphStage(label.mode, tuple(groups.tolist()), tuple(variants[groups].tolist())))
            label = label.behind
        return tuple(found)

    def _variants(self, label: _Label, groups: Array) -> Array:
        """Variant of each group (of all groups), in a stage: steps in the order of time per byte until it fits."""
        assert label.behind is not None
        mode, steps = self._problem.modes[label.mode], self._steps[label.mode]
        column, flying = self._column(label.mode, label.end), mode.flying(label.behind.flow)
        spare = mode.limit - int(column.fixed[label.start]) - flying * int(column.held[label.start])
        variants: Array = steps.fastest.copy()
        need = int(column.largest[label.start]) - spare
        if int(column.peak[label.start]) <= spare:
            return variants
        # Take whole steps until they save enough.
        cost, saved, then = steps.at(flying)
        own, number = (each.ravel() for each in np.meshgrid(groups, np.arange(cost.shape[1]), indexing="ij"))
        useful = saved[own, number] > 0
        own, number = own[useful], number[useful]
        order = np.lexsort((number, cost[own, number] / saved[own, number]))
        taken: list[int] = []
        for i in order:
            if need <= 0:
                break
            taken.append(i)
            need -= int(saved[own[i], number[i]])
        # Undo the dearest ones that turn out not to be needed; only a group's last step can be undone.
        level = dict.fromkeys(groups.tolist(), 0)
        for i in taken:
            level[int(own[i])] = int(number[i]) + 1
        for i in sorted(taken, key=lambda i: -int(cost[own[i], number[i]])):
            g, v = int(own[i]), int(number[i])
            if level[g] == v + 1 and need + int(saved[g, v]) <= 0:
                need += int(saved[g, v])
                level[g] = v
        for g, count in level.items():
            if count:
                variants[g] = then[g, count - 1]
        return variants
