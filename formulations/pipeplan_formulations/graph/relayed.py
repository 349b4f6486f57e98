"""Bound by all downsets, where they are many: stages by their two borders, from the end, one device after the other.

::

    front ─────────▶│◀──── stage ────▶│◀───────── behind          I, J: borders of a stage that takes m devices
    before (I)      I        m        J      d − m devices        before: devices that are needed at least

On route 'relay' what crosses a border is a number of the border alone, and work is a difference of prefix sums. So
every line of a mode says right(J) − left(I) ≤ share T. A border is useful for a target T only if there are devices
enough before and behind it: for the work, and for a stage on either side that can carry what crosses. The borders from
which d devices can do the rest follow from those of fewer devices: they lie below one of these, within a stage's time.

Memory, depths, borders of pairs and the choice of variants are left out, and all pools are one. So it is a bound; a
solution that is found is offered. docs/bounds/graph.md has the proof.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.graph.bounds import MARGIN, work
from pipeplan_formulations.graph.downsets import all_downsets, members, words
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages
from pipeplan_formulations.graph.mode import Array, GraphMode, Line

MOST = 300_000
"""Largest number of downsets."""
AT_ONCE = 4_096
"""Downsets of which all members are listed at once."""
NEAR = 0.02
"""A bound that is nearer to the incumbent than this is tried to reach it at once."""
NEVER = 2**30
"""Number of devices of a border from which no devices suffice."""


@dataclass(frozen=True)
class _Row:
    """A line of a mode, by downset: right[J] − left[I] ≤ share T; ``leave`` and ``enter`` are what crosses alone."""

    right: Array
    left: Array
    leave: Array
    enter: Array
    share: int
    busy: bool


class Relayed:
    """The programme for one instance of route 'relay'.

    Raises
    ------
    OutOfTimeError
    """

    def __init__(self, problem: GraphPartition, downsets: list[int], clock: Clock) -> None:
        self._problem, self._clock = problem, clock
        self._downsets, self._words = downsets, words(downsets, problem.groups)
        self._devices, self._takes = sum(problem.pools), [sum(mode.takes) for mode in problem.modes]
        self._size = np.array([mask.bit_count() for mask in downsets])
        # Sums over the groups of each downset, and over the stars that cross its border; equal weights once.
        parts = [members(downsets[k : k + AT_ONCE], problem.groups) for k in range(0, len(downsets), AT_ONCE)]
        self._parts, self._known = [(part, self._open(part)) for part in parts], dict[tuple[bool, bytes], Array]()
        self._rows = [[self._row(mode, line) for line in mode.lines] for mode in problem.modes]
        least = np.min(
            [self._least(mode, takes) for mode, takes in zip(problem.modes, self._takes, strict=True)], axis=0
        )
        self._work = np.concatenate([part @ least for part in parts])
        self._parts = []

    def _open(self, part: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The stars that cross the border of each downset."""
        self._clock.check()
        stars = self._problem.stars
        rows = [part[:, star.source] & ~part[:, star.readers].all(axis=1) for star in stars]
        return np.array(rows, np.bool_).reshape(len(stars), len(part)).T

    def _sums(self, weights: Array, stars: bool) -> Array:
        key = stars, weights.tobytes()
        if key not in self._known:
            self._clock.check()
            self._known[key] = np.concatenate([part[stars] @ weights for part in self._parts])
        return self._known[key]

    def _row(self, mode: GraphMode, line: Line) -> _Row:
        time = np.where(mode.possible, line.time, np.iinfo(np.int64).max).min(axis=0) * mode.possible.any(axis=0)
        leave, enter = (
            line.times * -(-self._sums(weights, stars=True) // line.divisor) for weights in (line.leave, line.enter)
        )
        done = self._sums(time, stars=False)
        return _Row(done + leave, done - enter, leave, enter, line.share, bool(time.any()))

    def _least(self, mode: GraphMode, takes: int) -> NDArray[np.float64]:
        """Device time of each group in a mode; infinite where it cannot run."""
        times, share = work(mode)
        return np.array([np.inf if time is None else takes * time / share for time in times])

    def reach(self, target: int) -> Stages | None:
        """Stages of load ``target`` or less, if nothing is left out; None if there are none."""
        before, behind = self._needed(target)
        useful = before + behind <= self._devices
        least = np.full(len(self._downsets), NEVER)
        least[-1] = 0
        layers = [np.flatnonzero(least == 0)]
        for devices in range(1, self._devices + 1):
            open_ = np.flatnonzero(useful & (least == NEVER) & (behind <= devices))
            open_ = open_[before[open_] <= self._devices - devices]
            for m, takes in enumerate(self._takes):
                if 0 < takes <= devices and len(open_):
                    ends = layers[devices - takes]
                    for _, found in self._below(m, target, open_, ends[useful[ends]]):
                        least[found] = devices
                    open_ = open_[least[open_] == NEVER]
            layers.append(np.flatnonzero(least == devices))
            if least[0] <= devices:
                return self._traced(target, layers, useful)
        return None

    def _needed(self, target: int) -> tuple[Array, Array]:
        """Devices before and behind each downset, at least."""
        done = self._work / max(target, 1)
        found = []
        for part, carried in ((done, "leave"), (done[-1] - done, "enter")):
            stage = np.full(len(done), NEVER)
            for takes, rows in zip(self._takes, self._rows, strict=True):
                able = np.all([getattr(row, carried) <= row.share * target for row in rows], axis=0)
                stage = np.where(able, np.minimum(stage, takes), stage)
            found.append(np.maximum(np.ceil(part - MARGIN * max(1.0, done[-1])).astype(np.int64), stage))
        found[0][0] = found[1][-1] = 0
        return found[0], found[1]

    def _below(self, m: int, target: int, starts: Array, ends: Array) -> Iterator[tuple[int, Array]]:
        """Each end with the starts of stages in a mode that end there; every start once."""
        rows = self._rows[m]
        for row in rows:
            starts, ends = (
                starts[row.enter[starts] <= row.share * target],
                ends[row.leave[ends] <= row.share * target],
            )
        busy = [row for row in rows if row.busy] or rows[:1]
        first, others = busy[0], busy[1:]
        # Starts by the left side of the first line: those of a stage up to an end are neighbours.
        starts = starts[np.argsort(first.left[starts], kind="stable")]
        left, sets = first.left[starts], self._words[:, starts]
        new = np.ones(len(starts), np.bool_)
        lows = np.searchsorted(left, first.right[ends] - first.share * target, side="left")
        for end, low in zip(ends.tolist(), lows.tolist(), strict=True):
            near = low + np.flatnonzero(new[low:])
            if not len(near):
                continue
            self._clock.check()
            fits = self._size[starts[near]] < self._size[end]
            for row in others:
                fits &= row.right[end] - row.left[starts[near]] <= row.share * target
            near = near[fits]
            for own, word in zip(sets, self._words[:, end], strict=True):
                near = near[own[near] & word == own[near]]
            if len(near):
                new[near] = False
                yield end, starts[near]

    def _traced(self, target: int, layers: list[Array], useful: NDArray[np.bool_]) -> Stages:
        """The stages behind the empty downset."""
        stages: list[GraphStage] = []
        at, devices = 0, len(layers) - 1
        while devices:
            at, devices, stage = self._step(target, layers, useful, at, devices)
            stages.append(stage)
        return tuple(stages)

    def _step(
        self, target: int, layers: list[Array], useful: NDArray[np.bool_], at: int, devices: int
    ) -> tuple[int, int, GraphStage]:
        for m, takes in enumerate(self._takes):
            ends = layers[devices - takes] if 0 < takes <= devices else np.zeros(0, np.int64)
            for end, _ in self._below(m, target, np.array([at]), ends[useful[ends]]):
                own = self._downsets[end] & ~self._downsets[at]
                groups = tuple(g for g in range(self._problem.groups) if own >> g & 1)
                mode = self._problem.modes[m]
                fastest = np.where(mode.possible, mode.lines[0].time, np.iinfo(np.int64).max).argmin(axis=0)
                return end, devices - takes, GraphStage(m, groups, tuple(fastest[list(groups)].tolist()))
        raise AssertionError("a border that devices can do the rest from has no stage")


def raise_by_borders(problem: GraphPartition, bracket: Bracket[Stages], clock: Clock) -> None:
    """Raise the bound of a bracket with an incumbent, and offer what is found, until a solution is none of the problem.

    Raises
    ------
    OutOfTimeError
    """
    downsets = all_downsets(problem, MOST, clock)
    if downsets is None:
        return
    programme, excluded = Relayed(problem, downsets, clock), False
    while not bracket.closed:
        high = bracket.ceiling
        near = excluded and high - bracket.low <= NEAR * high
        target = high - 1 if near else (bracket.low + high) // 2
        stages = programme.reach(target)
        excluded = stages is None
        if stages is None:
            bracket.raise_low(target + 1)
        elif (value := bracket.offer(stages)) is None or value > target:
            return
