"""Candidate stages between two downsets I ⊂ J: mode, load, and the largest flow allowed behind each of them.

Sums over groups are differences of prefix sums; sums over stars come from `StarSums`. Rows of all modes are stacked,
and one pass over the downsets J ⊃ I evaluates all of them::

    mode 0   line 0: time, leave, enter, pays; line 1: …; sizes     a row has one weight per group
    mode 1   line 0: …; sizes                                       and two per star

Take a star of M members, c of them in I. If c = 0, it adds the same as to the stage between {} and J; if c = M, it
adds nothing. Only the few stars with 0 < c < M, which cross the border of I, are evaluated for each J::

        I   │    J \\ I   │ rest            star a: c = 0       as for {} and J
      ┌─ a ─┼────────────┼                 star b: 0 < c < M   enters J \\ I if a reader lies there
      │     │  ●──b──●   ●
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph.bounds import MARGIN
from pipeplan_formulations.graph.downsets import members, words
from pipeplan_formulations.graph.fractions import Fractions, first_variants
from pipeplan_formulations.graph.fronts import Fronts, Quick, quick
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import Array, GraphMode


class StarSums:
    """Weighted sums over the stars that leave or enter a stage, for weights ``leave`` and ``enter`` of (rows, E)."""

    def __init__(self, problem: GraphPartition, inside: NDArray[np.bool_], leave: Array, enter: Array) -> None:
        self._relay = problem.route == "relay"
        # Rows of equal weights are computed once.
        both, self._row = np.unique(np.hstack([leave, enter]), axis=0, return_inverse=True)
        leave, enter = np.hsplit(both, 2)
        self._leave, self._enter = leave, enter
        sizes = [len(star.members) for star in problem.stars]
        self._sizes = np.array(sizes, np.int64)
        shape = (len(sizes), len(inside))
        # (E, downsets): is the star's source inside the downset, and how many of its members are?
        self._source = np.array([inside[:, star.source] for star in problem.stars], np.bool_).reshape(shape)
        self._count = np.array([inside[:, star.members].sum(axis=1) for star in problem.stars], np.int64).reshape(shape)
        open_ = (self._count > 0) & (self._count < self._sizes[:, None])
        self._open = open_  # the star crosses the border of the downset
        # (rows, downsets): the sums of the stage between {} and each downset. A relayed star that crosses the border
        # adds ``enter`` to the stage behind the border and ``leave`` to the stage before it.
        self._alone = leave @ (open_ & self._source) + enter @ (open_ & ~self._source)
        self._ahead = enter @ open_ if self._relay else self._alone
        self._behind = leave @ open_ if self._relay else self._alone

    def crossing(self, weights: Array) -> Array:
        """The weighted sum over the relayed stars that cross the border of each downset; shape (downsets,)."""
        found: Array = weights @ self._open
        return found

    def between(self, start: int, ends: Array) -> Array:
        """The sums for the stages from downset ``start`` to each of ``ends``; shape (rows, ends)."""
        if self._relay:
            relayed: Array = (self._behind[:, ends] + self._ahead[:, start, None])[self._row.ravel()]
            return relayed
        # Only stars that cross the border of ``start`` differ from the stage between {} and J.
        crossing = np.flatnonzero(self._open[:, start])
        leave, enter = self._leave[:, crossing], self._enter[:, crossing]
        at = np.ix_(crossing, ends)
        open_, source = self._open[at], self._source[at]
        touched = self._count[at] > self._count[crossing, start, None]
        # touched: the stage holds a member of the star; made: it holds the star's source.
        made = touched & source & ~self._source[crossing, start, None]
        # Replace the contribution of these stars to the stage between {} and J by that to the stage itself.
        sums: Array = self._alone[:, ends]
        sums = sums + leave @ (made.astype(np.int64) - (open_ & source))
        sums = sums + enter @ ((touched & ~made).astype(np.int64) - (open_ & ~source))
        return sums[self._row.ravel()]


ANY = 2**31
"""Code for an unlimited flow behind a stage."""


SUMS = 4
"""Number of rows per line: time, sum that leaves, sum that enters, groups that pay its base."""
SIZES = 5
"""Number of rows of sizes: fixed and held of the fastest variants, fixed and held of the leanest, received."""


@dataclass(frozen=True)
class Spans:
    """Stages that begin at one downset, least load first: parallel arrays, one entry per stage.

    ``end`` is the downset where the stage ends, ``most`` the largest flow allowed behind it, and ``point`` the entry of
    the front of variants (−1 if there is nothing to choose).
    """

    mode: Array
    end: Array
    load: Array
    most: Array
    point: Array

    def upto(self, load: int) -> int:
        """Number of stages of at most this load."""
        return int(np.searchsorted(self.load, load, side="right"))


class SpanTable:
    """Costs of all stages between the downsets of a family; the family is sorted by size.

    ``below``: loads are bounds, with variants in fractions, for solutions of at most this value; the point of a stage
    is then the flow behind it.
    """

    def __init__(
        self, problem: GraphPartition, downsets: Sequence[int], clock: Clock, below: int | None = None
    ) -> None:
        self._problem, self._clock = problem, clock
        self._words = words(downsets, problem.groups)
        self._members = members(downsets, problem.groups)
        self._quick = [quick(mode) if below is None else first_variants(mode) for mode in problem.modes]
        self._fractions = None if below is None else Fractions(problem, self._members, below)
        self._fronts = _fronts(problem) if problem.variants > 1 and below is None else ()
        groups, leave, enter, self._first = _rows(problem, self._quick)
        inside = self._members.T.astype(np.int64)
        self._prefix = groups @ inside
        self._forbidden = np.array([~mode.possible.any(axis=0) for mode in problem.modes], np.int64) @ inside
        self._slow = np.array([~each.known for each in self._quick], np.int64) @ inside
        self._stars = StarSums(problem, self._members, leave, enter)

    def borders(self) -> Array:
        """Border loads behind each downset; shape (borders, downsets)."""
        rows = [border.load(self._stars.crossing(border.leave)) for border in self._problem.borders]
        return np.array(rows, np.int64).reshape(len(rows), len(self._members))

    def after(self, start: int, most: int) -> Spans:
        """The stages of load ``most`` or less that begin at downset ``start``."""
        ends = start + 1 + np.flatnonzero(self._above(start))
        if self._fractions is not None:
            ends = self._fractions.within(start, ends)
        sums = self._prefix[:, ends] - self._prefix[:, start, None] + self._stars.between(start, ends)
        if self._fractions is not None:
            return self._divided(self._fractions, start, ends, sums, most)
        found = [self._of_mode(m, start, ends, sums, most) for m in range(len(self._problem.modes))]
        mode = np.repeat(np.arange(len(found)), [len(part[0]) for part in found])
        end, load, flow, point = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(load, kind="stable")
        return Spans(mode[order], end[order], load[order], flow[order], point[order])

    def groups(self, start: int, end: int) -> list[int]:
        """Groups between two downsets."""
        return [int(g) for g in np.flatnonzero(self._members[end] & ~self._members[start])]

    def variants(self, mode: int, start: int, end: int, point: int) -> tuple[int, ...]:
        """Variant of each group of a stage."""
        groups = self.groups(start, end)
        if self._fractions is not None:
            return self._whole(self._fractions, mode, start, end, point)[0]
        if point < 0:
            return tuple(int(self._quick[mode].variant[g]) for g in groups)
        return self._fronts[mode].variants(groups, point)

    def _above(self, start: int) -> NDArray[np.bool_]:
        """For each later downset, True if it is a superset of this one."""
        holds = np.ones(self._words.shape[1] - start - 1, np.bool_)
        for word in self._words:
            holds &= word[start + 1 :] & word[start] == word[start]
        return holds

    def _of_mode(self, m: int, start: int, ends: Array, sums: Array, most: int) -> tuple[Array, Array, Array, Array]:
        """End, load, largest flow behind and point of the stages of one mode."""
        # Load of every candidate end; keep ends within ``most`` whose groups can all run in this mode.
        mode, first = self._problem.modes[m], self._first[m]
        begin = first + SUMS * len(mode.lines)
        lines = sums[first:begin].reshape(len(mode.lines), SUMS, -1)
        load = np.max([line.load(*own) for line, own in zip(mode.lines, lines, strict=True)], axis=0)
        kept = np.flatnonzero((load <= most) & (self._forbidden[m, ends] == self._forbidden[m, start]))
        ends, load, lines = ends[kept], load[kept], lines[:, :, kept]
        # Bytes of the fastest and the leanest variants; the peak of the fastest ones, if any limit can bind.
        fixed, held, lean_fixed, lean_held, received = sums[begin : begin + SIZES, kept]
        peak = np.zeros(len(kept), np.int64)
        if mode.peak.any() and mode.limit < UNLIMITED:
            own = self._members[ends] & ~self._members[start]
            chosen = mode.peak[self._quick[m].variant, np.arange(self._problem.groups)]
            peak = np.where(own, chosen, 0).max(axis=1, initial=0)
        # Largest flow behind with the fastest variants. Without a choice of variants that is the answer.
        flow = _most_behind(mode, fixed, held + received, peak)
        point = np.full(len(kept), -1)
        if not self._fronts:
            fits = flow >= 0
            return ends[fits], load[fits], flow[fits], point[fits]
        # If the fastest variants allow any flow behind, there is nothing to choose. If not even the leanest variants
        # fit, no choice does.
        plain = (flow == ANY) & (self._slow[m, ends] == self._slow[m, start])
        open_ = ~plain & (_most_behind(mode, lean_fixed, lean_held + received, 0 * peak) >= 0)
        chosen_ones = self._chosen(m, start, ends[open_], lines[:, :, open_], received[open_], most)
        plain_ones = (ends[plain], load[plain], flow[plain], point[plain])
        end, load, flow, point = (np.concatenate(pair) for pair in zip(plain_ones, chosen_ones, strict=True))
        return end, load, flow, point

    def load(self, mode: int, start: int, end: int, flow: int) -> int | None:
        """Least load of a stage in this mode with so much flow behind, with whole variants; None if it is not known."""
        assert self._fractions is not None
        _, extra, proved = self._whole(self._fractions, mode, start, end, flow)
        if extra is None:
            return UNLIMITED
        (line,), at = self._problem.modes[mode].lines, slice(self._first[mode], self._first[mode] + SUMS)
        ends = np.array([end])
        sums = self._prefix[at, end, None] - self._prefix[at, start, None] + self._stars.between(start, ends)[at]
        return int(line.load(sums[0] + extra, *sums[1:])[0]) if proved else None

    def _whole(
        self, fractions: Fractions, mode: int, start: int, end: int, flow: int
    ) -> tuple[tuple[int, ...], int | None, bool]:
        """Whole variants of a stage, their extra time, and if no others take less."""
        received = self._first[mode] + SUMS + SIZES - 1
        entering = int(self._stars.between(start, np.array([end]))[received, 0])
        flying = self._problem.modes[mode].flying(flow)
        return fractions.variants(mode, self.groups(start, end), flying, entering)

    def _divided(self, fractions: Fractions, start: int, ends: Array, sums: Array, most: int) -> Spans:
        """The stages that begin at ``start``, for each flow behind that leaves enough places before them."""
        rows: list[Array] = []
        peaks: dict[bytes, Array] = {}
        for m, mode in enumerate(self._problem.modes):
            first = self._first[m]
            low, high = fractions.flows(m, start, ends)
            (line,) = mode.lines
            load = line.load(*sums[first : first + SUMS])
            fits = (load <= most) & (low <= high) & (self._forbidden[m, ends] == self._forbidden[m, start])
            kept = np.flatnonzero(fits)
            if not len(kept):
                continue
            # One row for each flow behind.
            count = high[kept] - low[kept] + 1
            flow = np.repeat(low[kept] - count.cumsum() + count, count) + np.arange(count.sum())
            kept = np.repeat(kept, count)
            fixed, held, _, _, received = sums[first + SUMS : first + SUMS + SIZES, kept]
            flying = mode.in_flight.take(flow, mode="clip")
            need = fixed + flying * (held + received) - mode.limit
            if mode.limit < UNLIMITED:
                need += self._peaks(fractions.least_peaks(m), start, ends, peaks)[kept]
            rows.append(np.stack([np.full(len(kept), m), kept, flow, flying, need]))
        if not rows:
            none = np.zeros(0, np.int64)
            return Spans(none, none, none, none, none)
        modes, kept, flow, flying, need = np.hstack(rows)
        extra = fractions.least(start, modes, ends[kept], flying, need)
        able = np.isfinite(extra)
        modes, kept, flow, flying = modes[able], kept[able], flow[able], flying[able]
        more = np.floor(extra[able] * (1 - MARGIN)).astype(np.int64)
        load = np.zeros(len(modes), np.int64)
        for m in np.unique(modes):
            own = np.flatnonzero(modes == m)
            first, (line,) = self._first[m], self._problem.modes[m].lines
            time, leave, enter, paying = sums[first : first + SUMS, kept[own]]
            load[own] = line.load(time + more[own], leave, enter, paying)
        # A row is not needed if the next one is the same stage with as many in flight: that allows more flow behind.
        same = (np.diff(np.stack([modes, kept, flying])) == 0).all(axis=0)
        good = np.flatnonzero(~np.append(same, False) & (load <= most))
        order = good[np.argsort(load[good], kind="stable")]
        return Spans(modes[order], ends[kept[order]], load[order], flow[order], flow[order])

    def _peaks(self, each: Array, start: int, ends: Array, known: dict[bytes, Array]) -> Array:
        """The largest entry of ``each`` among the groups from ``start`` to each of ``ends``."""
        key = each.tobytes()
        if key not in known:
            if each.any():
                own = self._members[ends] & ~self._members[start]
                known[key] = np.where(own, each, 0).max(axis=1, initial=0)
            else:
                known[key] = np.zeros(len(ends), np.int64)
        return known[key]

    def _chosen(
        self, m: int, start: int, ends: Array, lines: Array, received: Array, most: int
    ) -> tuple[Array, Array, Array, Array]:
        """Columns of `_of_mode` with open variants: each point of the front that allows more flow than faster ones."""
        mode, rows = self._problem.modes[m], []
        for i, end in enumerate(ends):
            self._clock.check()
            options = self._fronts[m].options(self.groups(start, int(end)), self._clock)
            own = zip(mode.lines, lines[:, :, i], options.time, strict=True)
            load = np.max([line.load(time + more, *others) for line, (time, *others), more in own], axis=0)
            flow = _most_behind(mode, options.fixed, options.held + received[i], options.peak)
            best = -1
            for point in np.lexsort((-flow, load)):
                if load[point] <= most and flow[point] > best:
                    best = int(flow[point])
                    rows.append((int(end), int(load[point]), best, int(point)))
        table = np.array(rows, np.int64).reshape(len(rows), 4).T
        return table[0], table[1], table[2], table[3]


def _fronts(problem: GraphPartition) -> tuple[Fronts, ...]:
    """Fronts of each mode; modes with the same front share it, as replicas of one stage do."""
    known: dict[object, Fronts] = {}
    found = []
    for mode in problem.modes:
        fronts = Fronts(mode)
        found.append(known.setdefault(fronts.key, fronts))
    return tuple(found)


def _rows(problem: GraphPartition, quick_variants: list[Quick]) -> tuple[Array, Array, Array, list[int]]:
    """Stacked rows of weights (of groups, of stars that leave, of stars that enter), and the first row of each mode.

    Lines use the least time of each group.
    """
    first: list[int] = []
    groups: list[Array] = []
    leave: list[Array] = []
    enter: list[Array] = []
    none, every = np.zeros(len(problem.stars), np.int64), np.arange(problem.groups)
    for mode, chosen in zip(problem.modes, quick_variants, strict=True):
        first.append(len(groups))
        for line, least in zip(mode.lines, chosen.least, strict=True):
            groups += [least, 0 * every, 0 * every, line.pays.astype(np.int64)]
            leave += [none, line.leave, none, none]
            enter += [none, none, line.enter, none]
        tables = (mode.fixed, mode.held)
        groups += [table[chosen.variant, every] for table in tables]
        groups += [np.where(mode.possible, t, UNLIMITED).min(axis=0) * mode.possible.any(axis=0) for t in tables]
        groups.append(0 * every)
        leave += [none] * SIZES
        enter += [none] * (SIZES - 1) + [mode.received]
    return np.array(groups), np.array(leave), np.array(enter), first


def _most_behind(mode: GraphMode, fixed: Array, held: Array, peak: Array) -> Array:
    """Largest flow allowed behind stages of these sizes; `ANY` if it is unlimited, −1 if they never fit."""
    free = mode.limit - fixed - peak
    flying = np.where(held > 0, free // np.maximum(held, 1), ANY)
    at = np.searchsorted(mode.in_flight, flying, side="right") - 1
    behind = np.where(at == len(mode.in_flight) - 1, ANY, at)
    result: Array = np.where(free < 0, -1, behind)
    return result
