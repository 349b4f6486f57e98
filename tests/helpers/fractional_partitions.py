"""Random fractional partition problems, and their optimum by a linear programme for each way to place the boundaries.

The oracle shares nothing with the formulation: it writes the shares of every layer on every stage as variables, for
every choice of the layers that the boundaries divide and of the stages that stream their weights.
"""

from itertools import combinations_with_replacement, product

import numpy as np
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp

from pipeplan_formulations.fractional import FractionalPartition
from pipeplan_formulations.partition import PathCut

UNLIMITED = 2**62


@st.composite
def fractional_partitions(draw, layers=4, stages=3, cuts=0) -> FractionalPartition:
    """Small instances: unequal devices, priced links, memory and on-chip limits that bind or exclude all."""
    n, depth = draw(st.integers(1, layers)), draw(st.integers(1, stages))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    linked = draw(st.sampled_from([0, 1, 3]))
    memory = draw(st.sampled_from(["free", "tight", "scarce"]))
    chip = draw(st.sampled_from(["all", "some", "some"]))
    order = draw(st.sampled_from(["any", "known", "known", "lanes"]))
    equal, unit = draw(st.booleans()), 10**7

    def times(rows, columns, top, least=0):
        values = rng.integers(least, top + 1, (rows, columns)) * unit
        return np.tile(values[:1], (rows, 1)) if equal and rows else values

    forward, backward = times(depth, n, 6), times(depth, n, 9)
    own, bytes_own = times(depth - 1, n, 4 * linked), rng.integers(0, 5, (1, n)) * 1000

    def crossing(outputs):
        """Crossing bytes ahead of a layer: at most those ahead of the one before, plus that one's output."""
        total = np.zeros_like(outputs)
        for c in range(n - 1):
            total[:, c + 1] = (total[:, c] + outputs[:, c]) * rng.integers(0, 5) // 4
        return total

    resident, saved = rng.integers(0, 9, n) * 1000, rng.integers(0, 6, n) * 1000
    need = int(resident.sum() + 3 * saved.sum())
    limit = {"free": UNLIMITED, "tight": 2 * need // (depth + 1), "scarce": need // (depth + 1)}[memory]
    weights = rng.integers(0, 7, n) * 1000
    on_chip = UNLIMITED if chip == "all" else int(rng.integers(0, 1 + int(weights.sum())))
    objective = draw(st.sampled_from(["step", "step", "bottleneck"]))

    def counts(length):
        return tuple(rng.integers(0, 5, length).tolist())

    paths = tuple(
        PathCut(counts(depth), counts(depth), counts(depth), counts(depth - 1), counts(depth - 1), 3 * unit)
        for _ in range(draw(st.integers(0, cuts)) if objective == "step" else 0)
    )
    return FractionalPartition(
        forward=forward,
        backward=backward,
        forward_streamed=forward + times(depth, n, 4),
        backward_streamed=backward + times(depth, n, 4),
        update=times(depth, n, 3),
        through=crossing(own),
        own=own,
        latency=rng.integers(0, 3, depth - 1) * unit,
        resident=resident,
        saved=saved,
        workspace=rng.integers(0, 5, n) * 1000,
        weights=weights,
        bytes_through=crossing(bytes_own)[0],
        bytes_own=bytes_own[0],
        in_flight=rng.integers(1, 4, depth),
        limit=np.full(depth, limit),
        on_chip=np.full(depth, on_chip),
        micro_batches=draw(st.integers(1, 6)),
        objective=objective,
        paths=paths,
        two_lanes=order == "lanes",
        ahead=rng.integers(1, 4, depth) if order == "known" else None,
    )


def optimum(problem: FractionalPartition) -> float | None:
    """The least T over all boundary layers and all ways of reading weights; None if nothing fits."""
    found = []
    modes = [(False, True) if (problem.weights.sum() > chip) else (False,) for chip in problem.on_chip]
    for cut in combinations_with_replacement(range(problem.layers + 1), problem.stages - 1):
        for streamed in product(*modes):
            value = _programme(problem, cut, streamed)
            if value is not None:
                found.append(value)
    return min(found, default=None)


def _programme(p: FractionalPartition, cut: tuple[int, ...], streamed: tuple[bool, ...]) -> float | None:
    """Least T where boundary s + 1 divides layer ``cut[s]`` (layer n: it lies at the end)."""
    lp = pywraplp.Solver.CreateSolver("GLOP")
    n, stages, scale = p.layers, p.stages, 1e-7  # times around 1 suit the solver's tolerances
    theta = [lp.NumVar(0, 1 if c < n else 0, "") for c in cut]

    def left(s, layer):  # the part of a layer in front of boundary s
        if s == 0:
            return 0
        if s == stages:
            return 1
        return theta[s - 1] if layer == cut[s - 1] else int(layer < cut[s - 1])

    share = [[left(s + 1, c) - left(s, c) for c in range(n)] for s in range(stages)]
    for row in share:
        for part in row:
            if not isinstance(part, int):
                lp.Add(part >= 0)

    def total(row, values, by=1.0):
        return sum(part * (float(value) * by) for part, value in zip(row, values, strict=True))

    def crossing(s, through, own, by=1.0):
        c = cut[s]
        return 0 if c == n else float(through[c]) * by + theta[s] * (float(own[c]) * by)

    forward = [total(share[s], (p.forward_streamed if far else p.forward)[s], scale) for s, far in enumerate(streamed)]
    back = [total(share[s], (p.backward_streamed if far else p.backward)[s], scale) for s, far in enumerate(streamed)]
    send = [crossing(s, p.through[s], p.own[s], scale) for s in range(stages - 1)]
    for s in range(stages):
        if not streamed[s] and p.on_chip[s] < UNLIMITED:
            lp.Add(total(share[s], p.weights) <= float(p.on_chip[s]))
        if p.limit[s] < UNLIMITED:
            received = crossing(s - 1, p.bytes_through, p.bytes_own) if s else 0
            need = total(share[s], p.resident) + int(p.in_flight[s]) * (total(share[s], p.saved) + received)
            for c in range(n):
                lp.Add(need + share[s][c] * float(p.workspace[c]) <= float(p.limit[s]))
    value, many = lp.NumVar(0, lp.infinity(), ""), p.micro_batches
    if p.objective == "bottleneck":
        sides = forward + back if p.two_lanes else [f + b for f, b in zip(forward, back, strict=True)]
        sides = sides + send
    else:
        first = total(share[0], p.update[0], scale)
        wait = [2 * float(x) * scale for x in p.latency]
        alone = first + sum(forward) + sum(back) + sum(wait)
        sides = [
            first + sum(forward[:s]) + sum(back[:s]) + sum(wait[:s]) + many * (forward[s] + back[s])
            for s in range(stages)
        ]
        sides = [] if p.two_lanes else sides
        sides += [alone + (many - 1) * x for x in forward + back]
        if p.ahead is not None:
            left = [max(many - int(h), 0) for h in p.ahead]
            sides += [alone + left[s] * forward[s] + (many - 1) * back[s] for s in range(stages)]
        sides += [alone + many * x - forward[s] for s, x in enumerate(send)]
        sides += [alone + many * x - back[s + 1] for s, x in enumerate(send)]
    updates = [total(share[s], p.update[s], scale) for s in range(stages)]
    for path in p.paths:
        rows = [(path.forward, forward), (path.backward, back), (path.update, updates)]
        rows += [(path.send, send), (path.send_back, send)]
        sides.append(
            path.constant * scale + sum(int(k) * x for row, times in rows for k, x in zip(row, times, strict=True))
        )
    for side in sides:
        lp.Add(value >= side)
    lp.Minimize(value)
    return value.solution_value() / scale if lp.Solve() == pywraplp.Solver.OPTIMAL else None
