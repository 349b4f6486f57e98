"""Variables of the prefix model, the point of a solution, and the solution of a point."""

from dataclasses import dataclass, field

import numpy as np

from pipeplan_formulations.common.mip.model import LinearModel
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages
from pipeplan_formulations.graph.mode import Array

Star = int
Stage = int
Mode = int


@dataclass
class PrefixModel:
    """Linear model and the index of each variable.

    ``y[g][k]`` for k < K − 1, ``x[g][k]``, ``w[g][k][v − 1]``: g lies in stage k under variant v ≥ 1 (under variant 0
    if x is 1 and all of these are 0), ``z[k][m]``; ``leave[e, k]`` and ``enter[e, k]``, which may be one switch;
    ``full[switch]``: stage k runs in one of these modes; ``peak[k, table]``: the largest entry of a table of peaks
    among the groups of stage k; ``whole``: sums of switches divided by ``divisor``, rounded up; ``paid[k, pays]``:
    stage k holds one of the groups that pay; ``depth[d]``: there are d stages; ``time``: T.
    """

    problem: GraphPartition
    scale: Scale
    stages: int
    rows: LinearModel = field(default_factory=LinearModel)
    y: list[list[int]] = field(default_factory=list)
    x: list[list[int]] = field(default_factory=list)
    w: list[list[list[int]]] = field(default_factory=list)
    z: list[list[int]] = field(default_factory=list)
    leave: dict[tuple[Star, Stage], int] = field(default_factory=dict)
    enter: dict[tuple[Star, Stage], int] = field(default_factory=dict)
    full: dict[int, tuple[Stage, list[Mode]]] = field(default_factory=dict)
    peak: dict[tuple[Stage, bytes], int] = field(default_factory=dict)
    whole: dict[int, tuple[dict[int, int], int]] = field(default_factory=dict)
    paid: dict[tuple[Stage, bytes], int] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=dict)
    time: int = -1

    def point(self, stages: Stages, value: int) -> list[int]:
        """Complete assignment of the variables for a solution and T = ``value``."""
        # Places of the stages: as many as the flow behind each, counted from the last place. Then x and y.
        point, at, places = list(self.rows.lows), self.stages - 1, list[int]()
        for stage in reversed(stages):
            places.insert(0, at)
            at -= self.problem.modes[stage.mode].flow
        placed = dict(zip(places, stages, strict=True))
        place = {g: k for k, stage in placed.items() for g in stage.groups}
        for g in range(self.problem.groups):
            for k in range(self.stages):
                point[self.x[g][k]] = int(place[g] == k)
                if k < self.stages - 1:
                    point[self.y[g][k]] = int(place[g] <= k)
        # Switches of the stars: a relayed star crosses the borders at all places between two stages.
        leave, enter = self.problem.crossings(stages)
        row = {k: s for s, k in enumerate(places)}
        for (e, k), switch in self.enter.items():
            point[switch] = int(enter[row[k], e]) if k in row else 0
        for (e, k), switch in self.leave.items():
            if self.problem.route == "relay":
                before = [s for own, s in row.items() if own <= k]
                point[switch] = int(leave[max(before), e]) if before else 0
            elif k in row:
                point[switch] = max(point[switch], int(leave[row[k], e]))
        # Modes, variants and peaks.
        for k, stage in placed.items():
            point[self.z[k][stage.mode]] = 1
            for g, v in zip(stage.groups, stage.variants, strict=True):
                if v:
                    point[self.w[g][k][v - 1]] = 1
        for switch, (k, modes) in self.full.items():
            point[switch] = int(k in placed and placed[k].mode in modes)
        for (k, table), peak in self.peak.items():
            if k in placed:
                stage, values = placed[k], np.frombuffer(table, np.int64).reshape(self.problem.variants, -1)
                point[peak] = int(values[list(stage.variants), list(stage.groups)].max())
        # Auxiliary variables: bases, number of stages, rounded sums, T.
        for (k, pays), switch in self.paid.items():
            groups = placed[k].groups if k in placed else ()
            point[switch] = int(np.frombuffer(pays, np.bool_)[list(groups)].any())
        for depth, switch in self.depth.items():
            point[switch] = int(depth == len(stages))
        for variable, (crossing, divisor) in self.whole.items():
            point[variable] = -(-sum(cost * point[switch] for switch, cost in crossing.items()) // divisor)
        point[self.time] = value
        return point

    def read(self, point: list[float]) -> Stages:
        """Solution of an assignment; empty stages are dropped."""
        stages = []
        for k in range(self.stages):
            groups = tuple(g for g in range(self.problem.groups) if point[self.x[g][k]] > 0.5)
            if groups:
                mode = int(np.argmax([point[z] for z in self.z[k]]))
                variants = tuple(int(np.argmax([0.5, *(point[w] for w in self.w[g][k])])) for g in groups)
                stages.append(GraphStage(mode, groups, variants))
        return tuple(stages)

    @property
    def passes(self) -> bool:
        """True if relayed tensors may cross places where no stage is."""
        return self.problem.route == "relay" and any(mode.flow > 1 for mode in self.problem.modes)

    def chosen(self, k: Stage, table: Array, sign: int = 1) -> dict[int, int]:
        """Terms of the sum of a table (variants, groups) over the groups of stage k, times ``sign``."""
        terms = {self.x[g][k]: sign * int(value) for g, value in enumerate(table[0]) if value}
        for g, v in zip(*np.nonzero((table[1:] - table[0]).T), strict=True):
            terms[self.w[g][k][v]] = sign * int(table[v + 1, g] - table[0, g])
        return terms
