r"""Least work of the stages before and behind a boundary, from what every stage takes for layers at a price.

The furthest-end programme alone believes that all layers lie on the fastest kind of device and recompute nothing,
although no plan within the target has room for that. At a price λ for each layer's least work μ, the stages of a plan
need not hold the same layers any more, and each of them is chosen by itself::

    Σ (F + B)  =  λ μ(layers)  +  Σ over stages of (F + B − λ μ(its layers))
               ≥  λ μ(layers)  +  Σ over stages of ψ(kind, width, flow)

    ψ    the least of F + B − λ μ over all spans that such a stage may hold within the target

The sum of ψ is least over all sequences of stages for each usage: Φ before it, Ψ behind. It is the Lagrangean bound of
the constraint that the stages hold every layer once, at the multipliers λ μ.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.allocation.furthest_end.reach import Reach
from pipeplan_formulations.allocation.furthest_end.stages import Modes, StageTables
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array, sums_before

Reals = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

PRICES = np.array([1.1, 1.2, 1.33, 1.5, 1.7, 1.9, 2.1, 2.3, 2.6, 3.0])
"""λ: of the work on the fastest kind, with recomputation."""
DEAREST = 1.5
"""The largest λ, relative to the slowest kind: with every forward twice."""
PIECES = (0.4, 0.6, 0.75, 0.87, 1.0)
"""Parts of the way to a furthest end between which the recomputation is that of the nearer one."""
COUNTS = 16
"""The in-flight counts of a range differ by this part of the least at most."""
PRECISION = 1e-9
"""Share of all work by which bounds are less at least; a double is far more precise."""
BEYOND = 2.0**60
"""A bound where no stages are possible."""


class _Measure(NamedTuple):
    """μ before each boundary, and for each kind the least ratios of work to μ, φ, and of B to work, β."""

    before: Array
    slowness: Reals
    backward: Reals

    @classmethod
    def of(cls, problem: ChainAllocation) -> "_Measure":
        work = problem.forward + problem.backward
        least = work.min(axis=0)
        some = least > 0
        shares = np.where(work > 0, problem.backward / np.maximum(work, 1), 1.0).min(axis=1)
        slowness = (work[:, some] / least[some]).min(axis=1, initial=np.inf)
        return cls(sums_before(least), slowness * (1 - PRECISION), shares * (1 - PRECISION))


def _ends_of_ranges(most: int) -> Array:
    """The last count of each range of counts, from 1 to ``most``."""
    ends = [1]
    while ends[-1] < most:
        first = ends[-1] + 1
        ends.append(min(first + first // COUNTS, most))
    return np.array(ends)


class PricedLayers:
    """Bounds on work for one instance, which hold for allocations within a target.

    ``trip`` is a lower bound on A of all of these, which they raise.
    """

    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        tables: StageTables,
        reach: Reach,
        target: int,
        trip: int,
        clock: Clock,
    ) -> None:
        self._problem, self._grid, self._clock = problem, grid, clock
        self._measure = _Measure.of(problem)
        dearest = DEAREST * float(np.where(np.isfinite(self._measure.slowness), self._measure.slowness, 1.0).max())
        self._prices = PRICES[: np.searchsorted(PRICES, dearest) + 1]
        self._margin = PRECISION * self._prices * self._measure.before[-1]
        self._before, self._behind = self._sums(self._costs(tables, reach, target, trip))
        least = self._least(self._measure.before[-1:], self._behind.min(axis=1)[:, None], np.array([np.inf]))
        self.trip = max(trip, int(least[0]))

    def heads(self, own: Modes, usage: Array, start: Array) -> Array:
        """A lower bound on H of stages with these usages from them on.

        From start to start it grows by no more than M_w times the work of the stage.
        """
        most = own.share * self._measure.slowness[own.kind]
        return self._least(self._measure.before[start], self._before[:, usage], most)

    def trips(self, own: Modes, usage: Array, behind: Array, start: Array) -> "Trips":
        """Bounds on A of stages with these usages from them on and behind them."""
        slowness, share = self._measure.slowness[own.kind], self._measure.backward[own.kind]
        most = (1 + (own.share - 1) * share) * slowness
        head = self._least(self._measure.before[start], self._before[:, usage], most)
        twice = (1 + np.maximum(own.share - own.most, 0)) * slowness
        begun = self._least(self._measure.before[start], self._before[:, usage], twice)
        return Trips(self, head, begun, behind, most, slowness)

    def rest(self, end: Array, usage: Array, most: Reals) -> Array:
        """The least work behind an end with this usage behind it, by prices up to ``most``."""
        return self._least(self._measure.before[-1] - self._measure.before[end], self._behind[:, usage], most)

    def _least(self, measure: Array, sums: Reals, most: Reals) -> Array:
        found = measure
        for price, margin, own in zip(self._prices, self._margin, sums, strict=True):
            bound = np.minimum(price * measure + own - margin, BEYOND).astype(np.int64)
            found = np.where(price <= most, np.maximum(found, bound), found)
        return found

    def _costs(self, tables: StageTables, reach: Reach, target: int, trip: int) -> Reals:
        """ψ by price, kind, width and flow from the stage on, infinite where no stage is possible."""
        problem, flows = self._problem, int(self._grid.total[-1])
        costs = np.full((len(self._prices), problem.kinds, len(problem.widths), flows + 1), np.inf)
        starts = np.flatnonzero(reach.last_cut[:-1] == np.arange(problem.layers))
        for kind, w in problem.every_mode:
            flow = np.arange(problem.widths[w], flows + 1)
            if not len(flow):
                continue
            self._clock.check()
            own = tables.modes(np.full_like(flow, kind), np.full_like(flow, w), flow, flow)
            # All counts, cut into ranges, and the ranges that stages of each flow may have.
            ends = _ends_of_ranges(int(own.most.max()))
            begins = np.concatenate([[1], ends[:-1] + 1])
            low, high = np.searchsorted(ends, own.least), np.searchsorted(ends, np.minimum(own.most, ends[-1]))
            parts = np.arange(int(low.min()), int(high.max()) + 1)
            rows = np.repeat(parts, len(starts))
            many = np.full_like(rows, int(own.share[0]))
            modes = Modes(np.full_like(rows, kind), np.full_like(rows, w), many, begins[rows], ends[rows])
            found = self._each(reach, modes, np.tile(starts, len(parts)), target, trip)
            found = found.reshape(len(found), len(parts), -1).min(axis=2)
            for units, first, last in zip(
                flow.tolist(), (low - parts[0]).tolist(), (high - parts[0]).tolist(), strict=True
            ):
                costs[:, kind, w, units] = found[:, first : last + 1].min(axis=1)
        return costs

    def _each(self, reach: Reach, own: Modes, start: Array, target: int, trip: int) -> Reals:
        """The least F + B − λ μ of stages of a kind from each start, shape (prices, m)."""
        before, slowness = self._measure.before, float(self._measure.slowness[own.kind[0]])
        end = reach.furthest(own, start, reach.least_work[start], np.full_like(start, trip), target)
        found = np.zeros((len(self._prices), len(start)))
        again = np.zeros_like(start)
        for piece in PIECES:
            right = start + np.ceil((end - start) * piece).astype(np.int64)
            held = before[right] - before[start]
            for row, price in zip(found, self._prices, strict=True):
                if price > slowness:
                    np.minimum(row, again - (price - slowness) * held, out=row)
            again = reach.again(own, start, right, whole=False)
        found[:, end <= start] = np.inf
        return found

    def _sums(self, costs: Reals) -> tuple[Reals, Reals]:
        """Φ and Ψ: the least sums of ψ over stages before each usage, and over stages that use it up."""
        problem, grid, count = self._problem, self._grid, len(self._prices)
        before, behind = np.zeros((count, grid.size)), np.full((count, grid.size), np.inf)
        behind[:, 0] = 0
        levels = []
        for cells in grid.levels[1:]:
            own = [(c, w, cells[grid.widest[c, cells] >= problem.widths[w]]) for c, w in problem.every_mode]
            usage = np.concatenate([some for _, _, some in own])
            rest = np.concatenate([some - grid.step(c, problem.widths[w]) for c, w, some in own])
            cost = np.concatenate([costs[:, c, w][:, grid.total[some]] for c, w, some in own], axis=1)
            levels.append((usage, rest, cost))
            for row, each in zip(behind, cost, strict=True):
                np.minimum.at(row, usage, row[rest] + each)
        for usage, rest, cost in reversed(levels):
            for row, each in zip(before, cost, strict=True):
                np.minimum.at(row, rest, row[usage] + each)
        return before, behind


@dataclass(frozen=True)
class Trips:
    """A of some stages by their ends: the work before them, their own, and that behind."""

    priced: PricedLayers
    head: Array
    begun: Array
    usage: Array
    most: Reals
    slowness: Reals

    def through(self, stages: Array, ends: Array, work: Array) -> Array:
        """A lower bound on A of the stages with these indices, ends, and F + B."""
        rest = self.priced.rest(ends, self.usage[stages], self.most[stages])
        found: Array = self.head[stages] + work + rest
        return found

    def behind(self, stages: Array, ends: Array, late: Array) -> tuple[Array, Array]:
        """Lower bounds on H and C of these stages, for two trips with so many late F + B."""
        most = (1 + late) / 2 * self.slowness[stages]
        return self.begun[stages], self.priced.rest(ends, self.usage[stages], most)
