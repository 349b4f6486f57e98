"""`PartitionModel`: a linear model with expressions for cuts and stages, translated to and from boundaries."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.mip.model import Expression, LinearModel
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.tables import Boundaries


class RecomputedLayers(NamedTuple):
    """Layers with equal numbers that a stage may recompute: variables for how many, and 1 if there are any."""

    stage: int
    layers: tuple[int, ...]
    number: int
    some: int


@dataclass
class PartitionModel(LinearModel):
    """A linear model with T as its objective, and the variables of its links.

    Attributes
    ----------
    switches : list of dict
        ``switches[l]`` maps each open cut of link l, in order, to its variable y.
    again : list of Again
        Layers that may be recomputed.
    """

    switches: list[dict[int, int]] = field(default_factory=list)
    again: list[RecomputedLayers] = field(default_factory=list)

    def above(self, expression: Expression | int) -> None:
        """Add T ≥ ``expression``."""
        self.at_least(Expression({self.objective: 1}) - expression)

    def chosen(self, link: int, values: Array) -> Expression:
        """``values[c]`` of the cut c at which the link lies."""
        cuts = self.switches[link]
        last = next(reversed(cuts))
        steps = {cuts[c]: int(values[c]) - int(values[following]) for c, following in pairwise(cuts)}
        return Expression({v: step for v, step in steps.items() if step}, int(values[last]))

    def over_stage(self, stage: int, prefix: Array) -> Expression:
        """Sum over a stage's layers: ``prefix`` (shape (n + 1,)) at its end minus ``prefix`` at its start."""
        start, end = Expression({}), Expression({}, int(prefix[-1]))
        if stage > 0:
            start = self.chosen(stage - 1, prefix[1:])
        if stage < len(self.switches):
            end = self.chosen(stage, prefix[1:])
        return end - start

    def point(self, problem: ChainPartition, boundaries: Boundaries, value: int) -> list[int]:
        """The complete assignment that belongs to boundaries and T = ``value``."""
        point = [0] * len(self.lows)
        for cuts, boundary in zip(self.switches, boundaries[1:-1], strict=True):
            for cut, variable in cuts.items():
                point[variable] = int(boundary - 1 <= cut)
        stages = {again.stage for again in self.again}
        chosen = {s: set(problem.recompute(s, *boundaries[s : s + 2]) or ()) for s in stages}
        for again in self.again:
            point[again.number] = len(chosen[again.stage].intersection(again.layers))
            point[again.some] = int(point[again.number] > 0)
        self.complete(point)
        point[self.objective] = value
        return point

    def boundaries(self, point: list[float], layers: int) -> Boundaries:
        """The boundaries that an assignment describes."""
        chosen = [next(cut for cut, variable in cuts.items() if point[variable] > 0.5) for cuts in self.switches]
        return (0, *(cut + 1 for cut in chosen), layers)
