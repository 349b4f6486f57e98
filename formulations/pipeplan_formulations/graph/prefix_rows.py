"""Rows of the prefix model: loads, borders and memory."""

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph.mode import Array, GraphMode
from pipeplan_formulations.graph.prefix_variables import PrefixModel


def loads(model: PrefixModel, k: int, mode: GraphMode, used: int, when: tuple[int, ...]) -> None:
    """Add the load: T is at least each line of the stage's mode.

    In units u of T a value V counts as ⌊V / u⌋, so u share T + share (u − 1) is at least the sum.
    """
    # Terms: T, the base, the times of the groups, then the switches of the stars.
    unit, rows = model.scale.unit, model.rows
    for line in mode.lines:
        payer = used if line.pays.all() or not line.base else _paid(model, k, line.pays)
        terms = {model.time: line.share * unit, payer: -line.base} | model.chosen(k, line.time, -1)
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


def borders(model: PrefixModel) -> None:
    """Add the border load and forbid modes that may not be neighbours. In units u of T, a value V counts as ⌊V / u⌋."""
    problem, rows, unit = model.problem, model.rows, model.scale.unit
    if problem.pairs is None:
        return
    for k in range(1, model.stages):
        crossings = []
        for border in problem.borders:
            stars = np.flatnonzero(border.leave)
            crossing = {model.enter[int(e), k]: int(border.leave[e]) for e in stars if (int(e), k) in model.enter}
            if border.divisor > 1 and crossing:
                crossing = {_whole(model, crossing, border.divisor, ()): 1}
            crossings.append(crossing)
        for (m, behind), index in np.ndenumerate(problem.pairs):
            front = k - problem.modes[behind].flow
            if front < 0:
                continue
            when = model.z[front][m], model.z[k][behind]
            if not all(model.rows.highs[switch] for switch in when):
                continue
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


def capacity(model: PrefixModel, k: int, high: int) -> None:
    """Add rows that the load implies for T of at most ``high``: the work of stage k is at most what its mode can do.

    Work counts by the least times and crossings of any mode, t. A mode whose own are at least t / ρ does at most
    ρ share T of it. They cost more than they bring where there are no variants (GNMT).
    """
    problem, rows = model.problem, model.rows
    number = min(len(mode.lines) for mode in problem.modes)
    for lines in zip(*(mode.lines[:number] for mode in problem.modes), strict=True):
        # Every mode's times and crossings, and the least of any mode; crossings that are divided do not count.
        whole = [line.times * (line.divisor == 1) for line in lines]
        time = [line.time for line in lines]
        leave, enter = (
            [getattr(line, way) * times for line, times in zip(lines, whole, strict=True)] for way in ("leave", "enter")
        )
        least = [np.min(tables, axis=0) for tables in (time, leave, enter)]
        terms = model.chosen(k, least[0], -1)
        for weights, switches in ((least[1], model.leave), (least[2], model.enter)) if not model.passes else ():
            for e in np.flatnonzero(weights):
                if (int(e), k) in switches:  # one switch for both directions counts once
                    terms[switches[int(e), k]] = -int(weights[e])
        # What each mode can do, rounded up.
        for m, line in enumerate(lines):
            parts = zip(least, (time[m], leave[m], enter[m]), strict=True)
            ratio = max(float((mine / np.maximum(own, 1)).max(initial=0)) for mine, own in parts)
            most = line.share * (high + 1) * model.scale.unit
            terms[model.z[k][m]] = int(most * min(ratio * (1 + 1e-9), 1)) + 1
        rows.at_least(terms, 0)


def memory(model: PrefixModel, k: int) -> None:
    """Add the memory limit, once for each in-flight count of each sort of modes with equal bytes.

    The flow behind place k is known.
    """
    problem, rows = model.problem, model.rows
    sorts: dict[tuple[bytes, ...], list[int]] = {}
    for m, mode in enumerate(problem.modes):
        if mode.limit < UNLIMITED:
            tables = (mode.fixed, mode.held, mode.peak, mode.received, np.array(mode.limit))
            sorts.setdefault(tuple(table.tobytes() for table in tables), []).append(m)
    for members in sorts.values():
        mode, behind = problem.modes[members[0]], model.stages - 1 - k
        peak = {_peak(model, k, mode.peak): -1} if mode.peak.any() else {}
        counts: dict[int, list[int]] = {}
        for m in members:
            if model.rows.highs[model.z[k][m]]:
                counts.setdefault(problem.modes[m].flying(behind), []).append(m)
        for flying, cases in counts.items():
            terms = peak | model.chosen(k, mode.fixed + flying * mode.held, -1)
            for e in np.flatnonzero(mode.received):
                if (int(e), k) in model.enter:
                    terms[model.enter[int(e), k]] = -flying * int(mode.received[e])
            rows.at_least(terms, -mode.limit, _when(model, k, cases, model.passes and bool(mode.received.any())))
        if len(counts) > 1 and len(sorts) == 1:
            # Bytes times least / own count: every mode's row divided so that the groups' terms are the same.
            few, many = min(counts), max(counts)
            terms = model.chosen(k, mode.fixed * few // max(many, 1) + few * mode.held, -1)
            for flying, cases in counts.items():
                terms |= {model.z[k][m]: -(-mode.limit * few // max(flying, 1)) for m in cases}
            if few:
                rows.at_least(terms, 0)


def _peak(model: PrefixModel, k: int, table: Array) -> int:
    """Variable that is at least the peak of each group of stage k."""
    key = k, table.tobytes()
    if key not in model.peak:
        peak = model.peak[key] = model.rows.real(0, int(table.max()))
        for g in range(model.problem.groups):
            own = {v: -c for v, c in model.chosen(k, np.where(np.arange(table.shape[1]) == g, table, 0)).items()}
            model.rows.at_least({peak: 1} | own)
    return model.peak[key]


def _when(model: PrefixModel, k: int, modes: list[int], used: bool) -> tuple[int, ...]:
    """Condition that stage k runs in one of these modes; () if they are all of them, unless ``used``."""
    able = [m for m, z in enumerate(model.z[k]) if model.rows.highs[z]]
    if len(modes) == len(able) and not used:
        return ()
    if len(modes) == 1:
        return (model.z[k][modes[0]],)
    switch = model.rows.boolean()
    model.full[switch] = k, modes
    for m in modes:
        model.rows.clause((~model.z[k][m], switch))
    return (switch,)
