"""Linear model of the graph partition with prefix variables y[g, k]: group g lies in stage k or before.

::

                k   0   1   2                        y[g, k] does not decrease in k; y[b, k] ≤ y[a, k] for a → b
    y[0, ·]         1   1   (1)                      x[g, k] = y[g, k] − y[g, k − 1]: g lies in stage k
    y[1, ·]         0   1   (1)    1 in stage 1      z[k, m]: stage k runs in mode m; all 0: stage k and all later
    y[2, ·]         0   0   (1)    2 in stage 2                stages are empty

Stages are ordered, so equal devices bring no symmetry. A star costs one switch per stage, which clauses force to 1. If
leaving and entering cost the same, the clauses go round the cycle of its members: x of one and not x of the next means
that the star is split, so M members need M clauses. Otherwise they go from the source to each reader.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.mip.model import LinearModel
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph.bounds import windows
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages
from pipeplan_formulations.graph.mode import GraphMode

Star = int
Stage = int


@dataclass
class PrefixModel:
    """Linear model and the index of each variable.

    ``y[g][k]`` for k < K − 1, ``x[g][k]``, ``w[g][k][v]`` (x of variant v), ``z[k][m]``; ``leave[e, k]`` and
    ``enter[e, k]``, which may be one switch; ``level[k, f]``: a flow of at least f behind stage k; ``peak[k]``;
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
    peak: dict[Stage, int] = field(default_factory=dict)
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
                behind += mode.flow
                for g, v in zip(stage.groups, stage.variants, strict=True):
                    point[self.w[g][k][v]] = 1
                    if k in self.peak:
                        point[self.peak[k]] = max(point[self.peak[k]], int(mode.peak[v, g]))
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
                variants = tuple(int(np.argmax([point[w] for w in self.w[g][k]])) for g in groups)
                stages.append(GraphStage(mode, groups, variants))
        return tuple(stages)


def prefix_model(problem: GraphPartition, scale: Scale, low: int, high: int, ceiling: int) -> PrefixModel:
    """Model of all solutions of value ``ceiling`` or less; T is in units of ``scale``, between ``low`` and ``high``."""
    model = PrefixModel(problem, scale, problem.most_stages)
    _place(model, ceiling)
    _modes(model)
    (_relay if problem.route == "relay" else _direct)(model)
    model.time = model.rows.time(low, high)
    model.rows.minimize(model.time)
    for k in range(model.stages):
        for m, mode in enumerate(problem.modes):
            when = (model.z[k][m],) if len(problem.modes) > 1 else ()
            _loads(model, k, mode, model.z[k][m], when)
            if mode.limit < UNLIMITED:
                _memory(model, k, m, mode)
    _borders(model)
    return model


def _place(model: PrefixModel, ceiling: int) -> None:
    """Add x, y and w: every group in one stage under one variant; and (1): y[b, k] ≤ y[a, k] for a → b."""
    problem, rows, last = model.problem, model.rows, model.stages - 1
    first, latest = windows(problem, ceiling, model.stages)
    for g in range(problem.groups):
        y = [rows.boolean(int(k >= latest[g]), int(k >= first[g])) for k in range(last)]
        x = [rows.boolean(0, int(first[g] <= k <= latest[g])) for k in range(model.stages)]
        for k in range(model.stages):
            before = {y[k - 1]: 1} if k else {}
            upto = {y[k]: -1} if k < last else {}
            rows.equal({x[k]: 1} | before | upto, 0 if k < last else 1)
            if 0 < k < last:
                rows.clause((~y[k - 1], y[k]))
        model.y.append(y)
        model.x.append(x)
        if problem.variants == 1:
            model.w.append([[x[k]] for k in range(model.stages)])
            continue
        model.w.append([[rows.boolean(0, rows.highs[x[k]]) for _ in range(problem.variants)] for k in range(last + 1)])
        for k in range(model.stages):
            rows.equal({x[k]: -1} | dict.fromkeys(model.w[g][k], 1), 0)
    for a, b in problem.edges:
        for k in range(last):
            rows.clause((~model.y[b][k], model.y[a][k]))


def _modes(model: PrefixModel) -> None:
    """Add z: one mode per used stage, used stages first, (2), (7), and groups only in modes that can run them."""
    problem, rows = model.problem, model.rows
    model.z = [[rows.boolean() for _ in problem.modes] for _ in range(model.stages)]
    for k, z in enumerate(model.z):
        rows.at_least(dict.fromkeys(z, -1), -1)
        if k:
            rows.at_least(dict.fromkeys(model.z[k - 1], -1) | dict.fromkeys(z, 1), 0)
        for g in range(problem.groups):
            rows.clause((~model.x[g][k], *z))
            for m, mode in enumerate(problem.modes):
                for v in np.flatnonzero(~mode.possible[:, g]):
                    rows.clause((~z[m], ~model.w[g][k][v]))
    for p, pool in enumerate(problem.pools):
        taken = {z[m]: -mode.takes[p] for z in model.z for m, mode in enumerate(problem.modes)}
        rows.at_least(taken, -pool)
    if problem.depths:
        model.depth = {depth: rows.boolean() for depth in problem.depths if depth <= model.stages}
        rows.equal(dict.fromkeys(model.depth.values(), 1), 1)
        number = {switch: -depth for depth, switch in model.depth.items()}
        rows.equal(number | dict.fromkeys((switch for z in model.z for switch in z), 1), 0)
        for k, z in enumerate(model.z):  # an empty stage has no mode
            rows.at_least(dict.fromkeys((x[k] for x in model.x), 1) | dict.fromkeys(z, -1), 0)


def _direct(model: PrefixModel) -> None:
    """Add the switches of route ``direct``: a star is split at stage k if only some members lie there."""
    # Per star: do leaving and entering cost anything, and do they cost the same on every line (alike)?
    problem, rows = model.problem, model.rows
    weights = [(row.leave, row.enter) for mode in problem.modes for row in mode.lines]
    weights += [(0 * mode.received, mode.received) for mode in problem.modes]
    plain = all(row.divisor == 1 for mode in problem.modes for row in mode.lines)
    for e, star in enumerate(problem.stars):
        leaves, enters = (any(pair[way][e] for pair in weights) for way in (0, 1))
        alike = plain and all(pair[0][e] == pair[1][e] for pair in weights)
        forward = problem.forward(star)
        for k in range(model.stages):
            x = [model.x[g][k] for g in star.members]
            if not any(rows.highs[v] for v in x) or not (leaves or enters):
                continue
            if alike:
                model.leave[e, k] = model.enter[e, k] = rows.boolean()
                for one, other in zip(x, [*x[1:], x[0]], strict=True):
                    rows.clause((~one, other, model.leave[e, k]))
                continue
            if leaves:
                model.leave[e, k] = rows.boolean()
                for reader, there in zip(star.readers, x[1:], strict=True):
                    done = model.y[reader][k] if forward and k < model.stages - 1 else there
                    rows.clause((~x[0], done, model.leave[e, k]))
            if enters:
                model.enter[e, k] = rows.boolean()
                for there in x[1:]:
                    rows.clause((~there, x[0], model.enter[e, k]))


def _relay(model: PrefixModel) -> None:
    """Add the switches of route ``relay``: the source lies before the border behind stage k and a reader behind it."""
    problem, rows = model.problem, model.rows
    for e, star in enumerate(problem.stars):
        for k in range(model.stages - 1):
            crosses = rows.boolean()
            model.leave[e, k] = model.enter[e, k + 1] = crosses
            for reader in star.readers:
                rows.clause((~model.y[star.source][k], model.y[reader][k], crosses))


def _loads(model: PrefixModel, k: int, mode: GraphMode, used: int, when: tuple[int, ...]) -> None:
    """Add (4): T is at least each line of the stage's mode.

    In units u of T a value V counts as ⌊V / u⌋, so u share T + share (u − 1) is at least the sum.
    """
    # Terms: T, the base, the times of the groups, then the switches of the stars.
    unit, rows = model.scale.unit, model.rows
    for line in mode.lines:
        payer = used if line.pays.all() or not line.base else _paid(model, k, line.pays)
        terms = {model.time: line.share * unit, payer: -line.base}
        for g in range(model.problem.groups):
            for v, w in enumerate(model.w[g][k]):
                terms[w] = -int(line.time[v, g])
        for weights, switches in ((line.leave, model.leave), (line.enter, model.enter)):
            crossing = {
                switches[int(e), k]: int(weights[e]) for e in np.flatnonzero(weights) if (int(e), k) in switches
            }
            if line.divisor > 1 and crossing:
                crossing = {_whole(model, crossing, line.divisor, when): 1}
            for switch, cost in crossing.items():
                both = switch in terms and model.problem.route == "direct"  # one switch for both directions
                terms[switch] = -cost * line.times if both else terms.get(switch, 0) - cost * line.times
        rows.at_least(terms, -line.share * (unit - 1), when)


def _paid(model: PrefixModel, k: int, pays: NDArray[np.bool_]) -> int:
    """Variable that is 1 if stage k holds a group that pays."""
    key = k, pays.tobytes()
    if key not in model.paid:
        model.paid[key] = model.rows.boolean()
        for g in np.flatnonzero(pays):
            model.rows.clause((~model.x[g][k], model.paid[key]))
    return model.paid[key]


def _borders(model: PrefixModel) -> None:
    """Add (8) and forbid modes that may not be neighbours. In units u of T, a value V counts as ⌊V / u⌋."""
    problem, rows, unit = model.problem, model.rows, model.scale.unit
    if problem.pairs is None:
        return
    for k in range(model.stages - 1):
        crossings = []
        for border in problem.borders:
            stars = np.flatnonzero(border.leave)
            crossing = {model.leave[int(e), k]: int(border.leave[e]) for e in stars if (int(e), k) in model.leave}
            if border.divisor > 1 and crossing:
                crossing = {_whole(model, crossing, border.divisor, ()): 1}
            crossings.append(crossing)
        for (m, behind), index in np.ndenumerate(problem.pairs):
            when = model.z[k][m], model.z[k + 1][behind]
            if index < 0:
                rows.clause((~when[0], ~when[1]))
            elif crossings[index]:
                border = problem.borders[index]
                terms = {switch: -cost * border.times for switch, cost in crossings[index].items()}
                rows.at_least({model.time: border.share * unit} | terms, 1 - border.share * unit, when)


def _whole(model: PrefixModel, crossing: dict[int, int], divisor: int, when: tuple[int, ...]) -> int:
    """Add a variable that is Σ crossing / divisor, rounded up."""
    rounded = model.rows.integer(0, -(-sum(crossing.values()) // divisor))
    model.rows.at_least({rounded: divisor} | {switch: -cost for switch, cost in crossing.items()}, 0, when)
    model.whole[rounded] = crossing, divisor
    return rounded


def _memory(model: PrefixModel, k: int, m: int, mode: GraphMode) -> None:
    """Add (3), once for every number in flight that a flow behind stage k can require."""
    problem, rows = model.problem, model.rows
    # Peak of the stage: at least the peak of each of its groups under this mode.
    peak: dict[int, int] = {}
    if mode.peak.any():
        if k not in model.peak:
            model.peak[k] = rows.real(0, max(int(each.peak.max()) for each in problem.modes))
        peak = {model.peak[k]: -1}
        for g in range(problem.groups):
            for v, w in enumerate(model.w[g][k]):
                rows.at_least({model.peak[k]: 1, w: -int(mode.peak[v, g])}, 0, (model.z[k][m],))
    # One row per step of the in-flight count, enforced if the stage has this mode and the flow reaches the step.
    steps = mode.steps if mode.depends_on_flow else mode.steps[-1:]
    known = len({each.flow for each in problem.modes}) == 1
    if known:
        steps = ((0, mode.flying(mode.flow * (model.stages - 1 - k))),)
    for flow, flying in steps:
        when = [model.z[k][m]] if len(problem.modes) > 1 else []
        if flow and mode.depends_on_flow:
            when.append(_level(model, k, flow))
            if not rows.highs[when[-1]]:
                continue
        terms = dict(peak)
        for g in range(problem.groups):
            for v, w in enumerate(model.w[g][k]):
                terms[w] = -int(mode.fixed[v, g]) - flying * int(mode.held[v, g])
        for e in np.flatnonzero(mode.received):
            if (int(e), k) in model.enter:
                terms[model.enter[int(e), k]] = -flying * int(mode.received[e])
        rows.at_least(terms, -mode.limit, when)


def _level(model: PrefixModel, k: int, flow: int) -> int:
    """Variable that is 1 if the flow behind stage k is at least ``flow``."""
    if (k, flow) not in model.level:
        problem, rows = model.problem, model.rows
        behind = {z[m]: mode.flow for z in model.z[k + 1 :] for m, mode in enumerate(problem.modes)}
        most = (model.stages - 1 - k) * max(mode.flow for mode in problem.modes)
        model.level[k, flow] = rows.boolean(0, int(most >= flow))
        rows.at_least({v: -c for v, c in behind.items()} | {model.level[k, flow]: most - flow + 1}, 1 - flow)
    return model.level[k, flow]
