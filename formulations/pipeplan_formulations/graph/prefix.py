"""Linear model of the graph partition with prefix variables y[g, k]: group g lies in stage k or before.

::

                k   0   1   2                        y[g, k] does not decrease in k; y[b, k] ≤ y[a, k] for a → b
    y[0, ·]         1   1   (1)                      x[g, k] = y[g, k] − y[g, k − 1]: g lies in stage k
    y[1, ·]         0   1   (1)    1 in stage 1      w[g, k, v]: g lies in stage k under variant v ≥ 1
    y[2, ·]         0   0   (1)    2 in stage 2      z[k, m]: the stage at place k runs in mode m; all 0: none

Places are numbered so that the flow behind place k is K − 1 − k: the last stage is at K − 1, and a stage of flow r
leaves the r − 1 places before it empty. So each place and mode has a known in-flight count, and loads and memory are
linear in the groups and variants of a stage. Stages are ordered, so equal devices bring no symmetry. A star costs
one switch per stage, which clauses force to 1. If leaving and entering cost the same, the clauses go round the cycle of
its members: x of one and not x of the next means that the star is split, so M members need M clauses. Otherwise they go
from the source to each reader.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.graph.bounds import windows
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.prefix_rows import borders, capacity, loads, memory
from pipeplan_formulations.graph.prefix_variables import PrefixModel


def prefix_model(
    problem: GraphPartition,
    scale: Scale,
    low: int,
    high: int,
    ceiling: int,
    shape: Sequence[int] = (),
) -> PrefixModel:
    """Model of all solutions of value ``ceiling`` or less; T is in units of ``scale``, between ``low`` and ``high``.

    With a ``shape``, only of those whose stages have these modes, from front to back.
    """
    model = PrefixModel(problem, scale, most_places(problem))
    at, fixed = model.stages - 1, dict[int, int]()
    for m in reversed(shape):
        fixed[at] = m
        at -= problem.modes[m].flow
    _place(model, ceiling, set(fixed) or set(range(model.stages)))
    _modes(model, fixed)
    (_relay if problem.route == "relay" else _direct)(model)
    model.time = model.rows.time(low, high)
    model.rows.minimize(model.time)
    model.rows.relaxed = problem.variants > 1
    for k in range(model.stages):
        for m, mode in enumerate(problem.modes):
            if not model.rows.highs[model.z[k][m]]:
                continue
            when = (model.z[k][m],) if len(problem.modes) > 1 or model.passes else ()
            loads(model, k, mode, model.z[k][m], when)
        if problem.variants > 1 and len(problem.modes) > 1 and not shape:
            capacity(model, k, high)
        memory(model, k)
    borders(model)
    return model


def _place(model: PrefixModel, ceiling: int, used: set[int]) -> None:
    """Add x, y and w: every group at one of the places ``used``, under one variant; and order: y[b, k] ≤ y[a, k]."""
    problem, rows, last = model.problem, model.rows, model.stages - 1
    first, latest = windows(problem, ceiling, model.stages)
    useful = _useful(problem)
    for g in range(problem.groups):
        y = [rows.boolean(int(k >= latest[g]), int(k >= first[g])) for k in range(last)]
        x = [rows.boolean(0, int(k in used and first[g] <= k <= latest[g])) for k in range(model.stages)]
        for k in range(model.stages):
            before = {y[k - 1]: 1} if k else {}
            upto = {y[k]: -1} if k < last else {}
            rows.equal({x[k]: 1} | before | upto, 0 if k < last else 1)
            if 0 < k < last:
                rows.clause((~y[k - 1], y[k]))
        model.y.append(y)
        model.x.append(x)
        model.w.append([[rows.boolean(0, rows.highs[v] * use) for use in useful[:, g]] for v in x])
        for k, w in enumerate(model.w[g]):
            if len(w) == 1:
                rows.clause((~w[0], x[k]))
            elif w:
                rows.at_least({x[k]: 1} | dict.fromkeys(w, -1), 0)
    for a, b in problem.edges:
        for k in range(last):
            rows.clause((~model.y[b][k], model.y[a][k]))


def most_places(problem: GraphPartition) -> int:
    """Number of places K: the largest flow of all stages together, as every mode takes devices of some pool."""
    total = 0
    for p, pool in enumerate(problem.pools):
        rates = [(mode.flow, mode.takes[p]) for mode in problem.modes if mode.takes[p]]
        total += max((pool * flow // takes for flow, takes in rates), default=0)
    return min(total, problem.most_stages * max(mode.flow for mode in problem.modes))


def _useful(problem: GraphPartition) -> NDArray[np.bool_]:
    """False where variant 0 is at least as good as variant v ≥ 1 in every mode; shape (V − 1, n)."""
    useful = np.zeros((problem.variants - 1, problem.groups), np.bool_)
    for mode in problem.modes:
        tables = [mode.fixed, mode.held, mode.peak, *(line.time for line in mode.lines)]
        better = np.any([table[1:] < table[0] for table in tables], axis=0) | ~mode.possible[0]
        useful |= mode.possible[1:] & better
    return useful


def _modes(model: PrefixModel, fixed: Mapping[int, int]) -> None:
    """Add z: one mode per stage, stages next to each other, pools, depths, and groups only in modes that can run them.

    ``fixed``: the mode at each place where a stage is, if they are given.
    """
    problem, rows, last = model.problem, model.rows, model.stages - 1
    flows = [mode.flow for mode in problem.modes]
    model.z = [[rows.boolean(0, int(flow <= k + 1)) for flow in flows] for k in range(model.stages)]
    if fixed:
        for k, z in enumerate(model.z):
            for m, switch in enumerate(z):
                rows.lows[switch] = rows.highs[switch] = int(fixed.get(k) == m)
    rows.equal(dict.fromkeys(model.z[last], 1), 1)
    for k, z in enumerate(model.z):
        # A stage at place k stands before one whose flow ends there, and holds a group.
        if k < last:
            behind = {model.z[k + flow][m]: 1 for m, flow in enumerate(flows) if k + flow <= last}
            rows.at_least(behind | dict.fromkeys(z, -1), 0)
        rows.at_least(dict.fromkeys((x[k] for x in model.x), 1) | dict.fromkeys(z, -1), 0)
        for g in range(problem.groups):
            rows.clause((~model.x[g][k], *z))
            for m, mode in enumerate(problem.modes):
                if not rows.highs[z[m]]:
                    continue
                for v in np.flatnonzero(~mode.possible[:, g]):
                    own = (~model.w[g][k][v - 1],) if v else (~model.x[g][k], *model.w[g][k])
                    rows.clause((~z[m], *own))
    for p, pool in enumerate(problem.pools):
        taken = {z[m]: -mode.takes[p] for z in model.z for m, mode in enumerate(problem.modes)}
        rows.at_least(taken, -pool)
    if problem.depths:
        model.depth = {depth: rows.boolean() for depth in problem.depths if depth <= model.stages}
        rows.equal(dict.fromkeys(model.depth.values(), 1), 1)
        number = {switch: -depth for depth, switch in model.depth.items()}
        rows.equal(number | dict.fromkeys((switch for z in model.z for switch in z), 1), 0)


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
