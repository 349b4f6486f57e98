r"""Least work of stages of a given flow, where kinds take unlike numbers of units for each of a stage's width.

Small teams are efficient, large ones are fast: of the same layers, a micro-batch takes longer on a small team, but that
needs fewer units. Which teams some stages have is known in part from their flow R and their units U::

    units   ████████████████████████████████        4 teams of 8, or 16 teams of 2: the same units, four times the flow
    flow    ━━━━  or  ━━━━━━━━━━━━━━━━              and a micro-batch passes more slowly

Let μ be the work of each layer on its fastest kind, for some layers, and 0 for all others. A stage on kind c works
φ_c μ at least, φ_c the least ratio. By the way-back bound it stays within T only if M_w (F + B) ≤ T, so φ_c μ ≤ T r / M
for r replicas. With any λ, γ ≥ 0 a stage of width w therefore works at least

    φ_c μ  ≥  λ μ − max(0, λ − φ_c) T unit w / (M φ_c)  ≥  λ μ + w (β − γ takes_c),
    β = min over kinds of  γ takes_c − max(0, λ − φ_c) T unit / (M φ_c).

The sum over stages is λ μ + β R − γ U. It is linear programming's dual bound on their work, and (λ, γ) are its prices.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.spans import least_work_before
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.pass_times import Role

RATIO = 1.25
"""The flows of all stages that are bounded together: those of a range whose ends have this ratio."""
HEAVY = 0.5
"""Layers count in μ if their work is at least this share of the median: the others may suit no team."""
PRECISION = 1e-12
"""Share of the terms of a sum by which it is less at least; a double is far more precise."""
STEEP = 1e4
"""A price of layers at which they are not worth holding on any kind, unless they have to be held."""


def flow_ranges(least: int, most: int) -> list[tuple[int, int]]:
    """Ranges, both ends included, that cover the flows from ``least`` to ``most``."""
    found = []
    while least <= most:
        end = min(max(least, int(least * RATIO)), most)
        found.append((least, end))
        least = end + 1
    return found


class FlowBounds:
    """Bounds on work in a role for one instance and one target T."""

    def __init__(self, problem: ChainAllocation, target: int, role: Role) -> None:
        # Work in a role is at most the device's own, which the way-back bound limits.
        work: Array = problem.of_layers(role).work
        best = work.min(axis=0)
        heavy = (best > 0) & (best >= HEAVY * np.median(best))
        # μ, and the least work of all layers, before each boundary.
        self._measure, self._least = sums_before(np.where(heavy, best, 0)), least_work_before(problem, role)
        # Of the kinds that take equally many units, the fastest one counts.
        ratios = (work[:, heavy] / np.maximum(best[heavy], 1)).min(axis=1, initial=np.inf)
        takes = sorted(set(problem.takes.tolist()))
        slowness = [float(ratios[problem.takes == each].min()) for each in takes]
        capacity = target * problem.unit / problem.micro_batches
        self._prices = list(_prices(np.array(takes, float), np.array(slowness), capacity)) if heavy.any() else []
        self._slowness = ratios

    def before(self, boundary: Array, least: Array, most: Array, units: Array, kind: Array, share: Array) -> Array:
        """Least work of one micro-batch on stages before a boundary, with flow ``least`` to ``most`` and these units.

        The bound for a later boundary exceeds that for an earlier one by no more than M_w times the work of the layers
        between on this kind, with M_w the ``share`` of the stage behind the boundary.
        """
        return self._work(
            self._measure[boundary], self._least[boundary], least, most, units, share * self._slowness[kind]
        )

    def of_all(self, least: Array, most: Array, units: int) -> Array:
        """Least work of one micro-batch on all layers, by the flow of all stages."""
        return self._work(self._measure[-1], self._least[-1], least, most, np.array(units), np.inf)

    def _work(
        self, measure: Array, work: Array, least: Array, most: Array, units: Array, steepest: Array | float
    ) -> Array:
        bound = np.zeros(np.broadcast(measure, least).shape)
        for price, rent, each in self._prices:
            own = (1 - PRECISION) * price * measure - (1 + PRECISION) * rent * units
            own = own + each * (least if each >= 0 else most)
            bound = np.maximum(bound, np.where(price <= steepest, own, 0))
        # Rounded down by more than a double can be wrong; other layers work what they do at least.
        found: Array = np.maximum((bound * (1 - 1e-9)).astype(np.int64) - measure, 0) + work
        return found


def _prices(takes: Array, slowness: Array, capacity: float) -> Iterator[tuple[float, float, float]]:
    """λ, γ and β: those at which some kind, or some pair of kinds, is as good as any other."""
    for price in sorted({*slowness.tolist(), STEEP * float(slowness.max())}):
        gain = np.maximum(price - slowness, 0) * capacity / slowness
        rents = {0.0}
        for a, b in combinations(range(len(takes)), 2):
            rents.add(max(float(gain[b] - gain[a]) / float(takes[b] - takes[a]), 0.0))
        for rent in sorted(rents):
            yield price, rent, float((rent * takes - gain - PRECISION * (rent * takes + gain)).min())
