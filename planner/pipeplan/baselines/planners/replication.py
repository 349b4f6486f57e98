"""PipeDream's dynamic programme: stages on several machines each, level by level through nodes and network.

One level: m machines, links of bandwidth β between them. Layers a … b − 1 take T on one machine. As a stage on m of
them they cost ::

    max( (T + 4 (m − 1) P / (β m μ)) / m,  2 A_in / (β m),  2 A_out / (β m) )

with P their parameter bytes, A the bytes over the first and last cut (none at the ends of a level's range, for which
the level above pays), μ the machines of the level below in one machine of this one. T is the value of the programme one
level below. (Narayanan et al., PipeDream, SOSP 2019, section 3.1; compute and all-reduce added up as in its optimizer.)

::

    level 0   devices of a node     2-1-1
    level 1   2 nodes               one stage on both            together: 4-2-2, every node 2-1-1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
Span = tuple[int, int, int]
"""First layer, end, machines."""
Part = tuple[int, int, tuple[int, ...]]
"""First layer, end, devices."""


@dataclass(frozen=True)
class Level:
    """Equal machines and the links between them.

    Attributes
    ----------
    machines : int
    bandwidth : int or None
        Bytes per second; None is a free link.
    inside : int
        Machines of the level below in one machine of this one.
    """

    machines: int
    bandwidth: int | None
    inside: int = 1


@dataclass(frozen=True)
class Solved:
    """One level's programme, solved. Nanoseconds; infinite where there is nothing.

    Attributes
    ----------
    stage : array, shape (m + 1, n + 1, n + 1)
        [j, a, b]: layers a … b − 1 as one stage on j machines, without what its cuts carry.
    carried : array, shape (m + 1, n + 1)
        [j, c]: the tensors over the cut ahead of layer c, into or out of a stage on j machines.
    before : array, shape (m, starts, n + 1)
        [j, a, b]: the least largest stage when layers a … b − 1 take j machines, and more stages follow.
    whole : array, shape (starts, n + 1)
        [a, b]: the least largest stage when layers a … b − 1 take all machines.
    """

    stage: Real
    carried: Real
    before: Real
    whole: Real

    def last_stages(self, own: int) -> Real:
        """[a, b]: layers a … b − 1 on ``own`` machines, with what enters them."""
        loads: Real = np.maximum(self.stage[own], self.carried[own][:, None])
        return loads

    def spans(self, a: int, b: int) -> list[Span]:
        """The stages behind ``whole[a, b]``, in order."""
        goal, left, end, found = self.whole[a, b], len(self.stage) - 1, b, list[Span]()
        while left:
            start, own = self._last(a, end, left, goal, closing=bool(found))
            found.append((start, end, own))
            left, end = left - own, start
            goal = self.before[left, a, end] if left else goal
        return found[::-1]

    def _last(self, a: int, end: int, machines: int, goal: float, closing: bool) -> tuple[int, int]:
        """First layer and machines of the last stage of an optimum; ``closing``: another stage follows."""
        for own in range(1, machines):
            loads = np.maximum(self.before[machines - own, a], self.last_stages(own)[:, end])
            if closing:
                loads = np.maximum(loads, self.carried[own, end])
            if loads.min() == goal:
                return int(loads.argmin()), own
        return a, machines


def solve_level(times: Real, parameters: Real, crossing: Real, level: Level, starts: int) -> Solved:
    """The programme of one level, O(starts m² n²).

    Parameters
    ----------
    times : array, shape (n + 1, n + 1)
        [a, b]: nanoseconds that layers a … b − 1 take on one machine; infinite for b ≤ a.
    parameters : array, shape (n + 1,)
        Bytes ahead of each layer: prefix sums.
    crossing : array, shape (n + 1,)
        Bytes over the cut ahead of each layer; 0 at both ends.
    starts : int
        Only ranges that begin with one of the first ``starts`` layers are solved.
    """
    total, n = level.machines, len(parameters) - 1
    per_byte = 0.0 if level.bandwidth is None else 1e9 / level.bandwidth
    weights = parameters[None, :] - parameters[:, None]
    stage = np.full((total + 1, n + 1, n + 1), np.inf)
    carried = np.zeros((total + 1, n + 1))
    for j in range(1, total + 1):
        stage[j] = (times + 4 * (j - 1) * weights * per_byte / (j * level.inside)) / j
        carried[j] = 2 * crossing * per_byte / j
    solved = Solved(stage, carried, np.full((total, starts, n + 1), np.inf), stage[total, :starts].copy())
    for j in range(1, total + 1):
        follows = j < total
        best = np.maximum(stage[j, :starts], carried[j]) if follows else solved.whole
        for own in range(1, j):
            last = solved.last_stages(own)
            if follows:
                last = np.maximum(last, carried[own])
            for a in range(starts):
                np.minimum(best[a], np.maximum(solved.before[j - own, a][:, None], last).min(axis=0), out=best[a])
        if follows:
            solved.before[j] = best
    return solved


def least_largest_stage(
    times: Sequence[int], parameters: Sequence[int], crossing: Sequence[int], levels: Sequence[Level], boxes: Any
) -> tuple[float, list[Part]]:
    """The value in nanoseconds, and its stages.

    Parameters
    ----------
    times, parameters : sequence of int, length n
        Nanoseconds and bytes of each layer on one device.
    crossing : sequence of int, length n − 1
        Bytes over each cut.
    levels : sequence of Level
        Innermost first.
    boxes : nested sequences of int
        The devices: a list of the outermost level's machines, each of which is a list of machines one level below, and
        so on down to device numbers.
    """
    n = len(times)
    sums, bytes_ahead = (np.concatenate([[0.0], np.cumsum(values, dtype=float)]) for values in (times, parameters))
    cuts = np.concatenate([[0.0], np.asarray(crossing, float), [0.0]])
    alone = np.where(np.tri(n + 1, n + 1, 0, dtype=bool), np.inf, sums[None, :] - sums[:, None])
    solved: list[Solved] = []
    for level in levels:
        outermost = level is levels[-1]
        solved.append(solve_level(alone, bytes_ahead, cuts, level, 1 if outermost else n))
        alone = np.vstack([solved[-1].whole, np.full((n + 1 - len(solved[-1].whole), n + 1), np.inf)])
    return float(solved[-1].whole[0, n]), _spread(solved, 0, n, [boxes])


def _spread(solved: Sequence[Solved], a: int, b: int, boxes: Sequence[Any]) -> list[Part]:
    """Stages of layers a … b − 1 on machines that are used alike: the same places of every box."""
    if not solved:
        return [(a, b, tuple(boxes))]
    found: list[Part] = []
    place = 0
    for start, end, own in solved[-1].spans(a, b):
        machines = [machine for box in boxes for machine in box[place : place + own]]
        found += _spread(solved[:-1], start, end, machines)
        place += own
    return found
