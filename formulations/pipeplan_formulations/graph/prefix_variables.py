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
    ``level[k, f]``: a flow of at least f behind stage k; ``full[switch]``: any of these modes (stage, mode) with at
    least this flow behind; ``peak[k, table]``: the largest entry of a table of peaks among the groups of stage k;
    ``whole``: sums of switches divided by ``divisor``, rounded up; ``paid[k, pays]``: stage k holds one of the groups
    that pay; ``depth[d]``: there are d stages; ``time``: T.
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
    level: dict[tuple[Stage, int], int] = field(default_factory=dict)
    full: dict[int, list[tuple[Stage, Mode, int]]] = field(default_factory=dict)
    peak: dict[tuple[Stage, bytes], int] = field(default_factory=dict)
    whole: dict[int, tuple[dict[int, int], int]] = field(default_factory=dict)
    paid: dict[tuple[Stage, bytes], int] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=dict)
    time: int = -1

    def point(self, stages: Stages, value: int) -> list[int]:
        """Complete assignment of the variables for a solution and T = ``value``."""
        # Placement: x and y; stages are numbered from the last one, so unused ones come first.
        point = list(self.rows.lows)
        unused = self.stages - len(stages)
        place = {g: unused + s for s, stage in enumerate(stages) for g in stage.groups}
        for g in range(self.problem.groups):
            for k in range(self.stages):
                point[self.x[g][k]] = int(place[g] == k)
                if k < self.stages - 1:
                    point[self.y[g][k]] = int(place[g] <= k)
        # Switches of the stars.
        leave, enter = self.problem.crossings(stages)
        for crosses, switches in ((leave, self.leave), (enter, self.enter)):
            for (e, k), switch in switches.items():
                point[switch] = max(point[switch], int(crosses[k - unused, e]) if k >= unused else 0)
        # Modes, variants, peaks and levels of flow, from the last stage to the first.
        behind = 0
        for k in range(self.stages - 1, -1, -1):
            for (own, flow), switch in self.level.items():
                point[switch] = int(behind >= flow) if own == k else point[switch]
            if k >= unused:
                stage = stages[k - unused]
                mode = self.problem.modes[stage.mode]
                point[self.z[k][stage.mode]] = 1
                now, behind = behind, behind + mode.flow
                for g, v in zip(stage.groups, stage.variants, strict=True):
                    if v:
                        point[self.w[g][k][v - 1]] = 1
                for switch, cases in self.full.items():
                    point[switch] |= any((k, stage.mode) == own[:2] and now >= own[2] for own in cases)
        for (k, table), peak in self.peak.items():
            if k >= unused:
                stage, values = stages[k - unused], np.frombuffer(table, np.int64).reshape(self.problem.variants, -1)
                point[peak] = int(values[list(stage.variants), list(stage.groups)].max())
        # Auxiliary variables: bases, number of stages, rounded sums, T.
        for (k, pays), switch in self.paid.items():
            groups = stages[k - unused].groups if k >= unused else ()
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

    def chosen(self, k: Stage, table: Array, sign: int = 1) -> dict[int, int]:
        """Terms of the sum of a table (variants, groups) over the groups of stage k, times ``sign``."""
        terms = {self.x[g][k]: sign * int(value) for g, value in enumerate(table[0]) if value}
        for g, v in zip(*np.nonzero((table[1:] - table[0]).T), strict=True):
            terms[self.w[g][k][v]] = sign * int(table[v + 1, g] - table[0, g])
        return terms
