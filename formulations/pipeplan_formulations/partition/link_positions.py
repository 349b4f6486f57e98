"""Positions of the links in the linear model: variables, rows, and the stage of each layer.

::

    y[l, c] = 1   link l lies at cut c or before, so b_{l+1} ≤ c + 1

              c   0   1   2   3   4   5   6
    y[0, ·]       ·   ·   1   1   1   1   1      it lies at cut c where y[l, c] − y[l, c − 1] = 1
    y[1, ·]       ·   ·   ·   ·   1   1   1
                          ╰stage 1╯              layer i is on stage s where y[s − 1, i − 1] − y[s, i − 1] = 1
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.mip.model import Expression
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.model import PartitionModel
from pipeplan_formulations.partition.windows import Windows


class UpTo:
    """y of the last open cut that is at most c; 0 before the first. ``None`` stands for a fixed cut."""

    def __init__(self, cuts: Mapping[int, int | None]) -> None:
        self._cuts = list(cuts)
        self._variables = list(cuts.values())
        self.last = self._cuts[-1]

    def __call__(self, cut: int) -> Expression:
        found = bisect_right(self._cuts, cut) - 1
        if found < 0:
            return Expression({})
        variable = self._variables[found]
        return Expression({}, 1) if variable is None else Expression({variable: 1})


class Membership:
    """Membership of layers in stages: an expression that is 1 if the layer lies on the stage, else 0."""

    def __init__(self, model: PartitionModel, problem: ChainPartition) -> None:
        starts: list[Mapping[int, int | None]] = [{-1: None}, *model.switches]
        ends: list[Mapping[int, int | None]] = [*model.switches, {problem.layers - 1: None}]
        self._begun = [UpTo(cuts) for cuts in starts]
        self._ended = [UpTo(cuts) for cuts in ends]

    def __call__(self, stage: int, layer: int) -> Expression:
        return self._begun[stage](layer - 1) - self._ended[stage](layer - 1)


def add_link_positions(model: PartitionModel, problem: ChainPartition, room: Windows) -> None:
    """Add one cut per link, in order, and no stage that ends beyond its window."""
    for link in range(problem.stages - 1):
        cuts = [int(b) - 1 for b in np.flatnonzero(room.open[link + 1])]
        model.switches.append({cut: model.boolean(int(cut == cuts[-1]), 1) for cut in cuts})
        for before, after in pairwise(model.switches[-1].values()):  # at cut c or before, so at c + 1 or before
            model.at_least(Expression({after: 1, before: -1}))
    for ahead, behind in pairwise(model.switches):  # the later link at c or before, so the earlier at c − 1 or before
        least = UpTo(ahead)
        for cut, variable in behind.items():
            model.at_least(least(cut - 1) - Expression({variable: 1}))
    for stage in range(problem.stages):
        _reach(model, problem, stage, room.last[stage])


def _reach(model: PartitionModel, problem: ChainPartition, stage: int, last: Array) -> None:
    """Add the memory limit and allowed layers: a stage that starts at a ends at ``last[a]`` at most.

    A stage that starts at a *or before* ends at most at the largest of those ends. That is as strong while ``last``
    increases, so one row covers all starts up to a. Elsewhere a row for the single start is added.
    """
    begin: dict[int, Expression] = {0: Expression({}, 1)}  # y of the stage's start; stage 0 starts at 0
    if stage > 0:
        begin = {cut + 1: Expression({v: 1}) for cut, v in model.switches[stage - 1].items()}
    end_by = UpTo(model.switches[stage] if stage < problem.stages - 1 else {problem.layers - 1: None})
    farthest = end_by.last + 1
    before, reach = Expression({}), 0
    for start, begun in begin.items():
        end = int(last[start])
        reach = max(reach, end)
        if reach < farthest:
            model.at_least(end_by(reach - 1) - begun)
        if end < reach and end < farthest:
            model.at_least(end_by(end - 1) - (begun - before))
        before = begun
