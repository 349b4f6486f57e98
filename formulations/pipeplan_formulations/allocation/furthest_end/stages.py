"""Stages of the furthest-end programme: every kind and width, by units and flow from the stage on."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipeplan_formulations.allocation.flow_bounds import flow_ranges
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.layer_tables import Array

COUNTS = 8
"""The in-flight counts of a range differ by this part of the least at most."""


@dataclass(frozen=True)
class Modes:
    """Modes of stages, with the in-flight counts that they may have.

    Attributes
    ----------
    kind : array of int, shape (m,)
    w, share, least, most : array of int, shape (m,)
        Index of the width, M_w, and the fewest and most micro-batches in flight.
    """

    kind: Array
    w: Array
    share: Array
    least: Array
    most: Array

    def modes(self, chosen: Array) -> "Modes":
        """The modes alone of the stages with these indices."""
        rows = (self.kind, self.w, self.share, self.least, self.most)
        return Modes(*(row[chosen] for row in rows))


@dataclass(frozen=True)
class Stages(Modes):
    """All stages, of any kind and width, with equally many units from the stage on.

    Attributes
    ----------
    part : array of int, shape (m,)
        The range of the flow of all stages.
    usage, behind : array of int, shape (m,)
        Flat usage from the stage on, and behind it.
    flow, before : array of int, shape (2, m)
        The least and the largest flow from the stage on, and before it.
    units : array of int, shape (m,)
        The most units of the stages before.
    """

    part: Array
    usage: Array
    behind: Array
    flow: Array
    before: Array
    units: Array

    def only(self, chosen: Array) -> "Stages":
        """The stages with these indices."""
        return Stages(**{name: row[..., chosen] for name, row in vars(self).items()})

    def holding(self, least: Array) -> "Stages":
        """The stages with these in-flight counts."""
        return replace(self, least=least)

    def by_counts(self) -> "Stages":
        """The stages, once for each range of their in-flight counts."""
        rows, least, most = ranges_of_counts(self.least, self.most)
        return replace(self.only(rows), least=least, most=most)


def ranges_of_counts(least: Array, most: Array) -> tuple[Array, Array, Array]:
    """Index, first and last count of the ranges into which each pair of counts is cut."""
    rows, low, parts = np.arange(len(least)), least, []
    while len(rows):
        high = np.minimum(low + low // COUNTS, most[rows])
        parts.append((rows, low, high))
        more = np.flatnonzero(high < most[rows])
        rows, low = rows[more], high[more] + 1
    found = tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))
    return found if found else (rows, rows, rows)  # type: ignore[return-value]


class StageTables:
    """The stages of one instance.

    Attributes
    ----------
    ranges : array of int, shape (2, parts)
        Ranges of the flow of all stages; one of all flows where kinds take equally many units.
    unlike : bool
        True if kinds take unlike numbers of units.
    """

    def __init__(self, problem: ChainAllocation, grid: Grid) -> None:
        self._problem, self._grid = problem, grid
        self.unlike = bool((problem.takes > 1).any())
        least = min(1, problem.most_flow) if self.unlike else 0
        ranges = flow_ranges(least, problem.most_flow) if self.unlike else [(least, problem.most_flow)]
        self.ranges: Array = np.array(ranges, np.int64).reshape(-1, 2).T
        # The fewest and the most micro-batches in flight of each width, by the flow behind.
        names = ("in_flight", "most_in_flight")
        rows = ([getattr(mode, name) for mode in problem.modes[0]] for name in names)
        self._counts = [np.maximum(np.stack(row), 1) for row in rows]
        self._shares = np.array([problem.share(width) for width in problem.widths])

    def modes(self, kind: Array, w: Array, least: Array, most: Array) -> Modes:
        """The modes of stages from which on the flow lies between two."""
        width, share = np.array(self._problem.widths)[w], self._shares[w]
        fewest, largest = (counts[w, flow - width] for counts, flow in zip(self._counts, (least, most), strict=True))
        return Modes(kind, w, share, fewest, largest if self._problem.alternating else share)

    @cached_property
    def every(self) -> Modes:
        """Every mode, with any in-flight count."""
        kind, w = np.array(self._problem.every_mode, np.int64).reshape(-1, 2).T
        share = self._shares[w]
        return Modes(kind, w, share, np.ones_like(share), share)

    @property
    def chooses(self) -> bool:
        """True if counts are a choice that matters."""
        problem = self._problem
        return problem.chooses and problem.alternating and not problem.endless

    @cached_property
    def by_counts(self) -> list[Stages]:
        """The stages of `levels`, once for each range of their in-flight counts."""
        return [own.by_counts() for own in self.levels]

    @cached_property
    def levels(self) -> list[Stages]:
        """The stages by the units from them on, all units first."""
        problem, grid = self._problem, self._grid
        widths, levels = np.array(problem.widths), []
        for cells in reversed(grid.levels[1:]):
            modes = [(kind, w, cells[grid.widest[kind, cells] >= problem.widths[w]]) for kind, w in problem.every_mode]
            if not modes:
                break
            kind, w = (np.repeat([mode[i] for mode in modes], [len(mode[2]) for mode in modes]) for i in (0, 1))
            usage = np.concatenate([mode[2] for mode in modes])
            steps = np.array([grid.step(c, widths) for c in range(problem.kinds)])
            levels.append(self._stages(kind, usage, usage - steps[kind, w], w))
        return levels

    def _stages(self, kind: Array, usage: Array, behind: Array, w: Array) -> Stages:
        """The stages for each range of flows within which they are possible."""
        low, high = self.ranges
        width, (fewest, largest) = np.array(self._problem.widths)[w], self._flows
        front = self._front[usage]
        least = np.maximum(width + fewest[behind], low[:, None] - front)
        most = np.minimum(width + largest[behind], high[:, None])
        before = np.stack([np.maximum(low[:, None] - most, 0), np.minimum(high[:, None] - least, front)])
        part, own = np.nonzero((least <= most) & (before[0] <= before[1]))
        flow, before = np.stack([least, most])[:, part, own], before[:, part, own]
        units = sum(self._grid.units) - self._grid.coordinates.sum(axis=0)
        modes = self.modes(kind[own], w[own], *flow)
        return Stages(
            **vars(modes),
            part=part,
            usage=usage[own],
            behind=behind[own],
            flow=flow,
            before=before,
            units=units[usage[own]],
        )

    def begin(self) -> Array:
        """The first labels: boundary 0 at every usage that all stages may have, by range of flows."""
        least, most = self.ranges[:, :, None]
        if not self.unlike:
            return np.zeros((1, self._grid.size), np.int64)
        fewest, largest = self._flows
        return np.where((least <= largest) & (fewest <= most), 0, -1)

    def counted(self, own: Stages, flow: Array) -> Stages:
        """The stages with which the flow stays in its range, if ``flow`` is that of the stages before.

        In-flight counts are for the largest flow that is left.
        """
        left = np.minimum(own.flow[1], self.ranges[1, own.part] - flow)
        some = np.flatnonzero(left >= own.flow[0])
        own, left = own.only(some), left[some]
        return own.holding(self.modes(own.kind, own.w, left, left).least)

    @cached_property
    def _flows(self) -> tuple[Array, Array]:
        """The least and the largest flow of stages that take the units of each usage."""
        coordinates = self._grid.coordinates
        fewest, largest = (
            sum(each(own, pool) for pool, own in enumerate(coordinates)) for each in (self._fewest, self._largest)
        )
        return np.asarray(fewest), np.asarray(largest)

    def _fewest(self, units: Array, pool: int) -> Array:
        found: Array = -(-units // self._problem.takes[self._problem.pool == pool].max())
        return found

    def _largest(self, units: Array, pool: int) -> Array:
        found: Array = units // self._problem.takes[self._problem.pool == pool].min()
        return found

    @cached_property
    def _front(self) -> Array:
        """The largest flow of the stages before each usage."""
        grid = self._grid
        rows = zip(grid.units, grid.coordinates, strict=True)
        return np.asarray(sum(self._largest(units - own, pool) for pool, (units, own) in enumerate(rows)))
