"""CP-SAT, CBC, the dynamic programmes and the listing against brute force on the chain partition problem.

The oracle below evaluates the equations of docs/bounds/chain.md by itself and shares no code with the formulation.
"""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan_formulations import partition
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.partition import ChainPartition, PathCut

UNLIMITED = 2**62


@st.composite
def problems(draw: st.DrawFn, cuts: bool = True) -> ChainPartition:
    """Up to seven layers on up to four unequal devices: links, latency, updates, memory that sometimes excludes all."""
    n = draw(st.integers(1, 7))
    stages = draw(st.integers(1, min(n, 4)))
    top = draw(st.sampled_from([1, 3, 9]))  # small ranges make ties

    def table(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        values = draw(st.lists(st.integers(0, top), min_size=size, max_size=size))
        return np.array(values, dtype=np.int64).reshape(shape)

    def row(size: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))

    objective = draw(st.sampled_from(["step", "step", "bottleneck", "delayed"]))
    paths = tuple(
        PathCut(row(stages), row(stages), row(stages), row(stages - 1), row(stages - 1), draw(st.integers(0, 9)))
        for _ in range(draw(st.integers(0, 2)) if cuts and objective == "step" else 0)
    )
    limit = draw(st.sampled_from([UNLIMITED, UNLIMITED, 8 * top, 20 * top, 40 * top]))
    return ChainPartition(
        forward=table(stages, n),
        backward=table(stages, n),
        update=table(stages, n),
        reduce=(objective == "delayed") * 3 * table(stages, n),
        reduce_base=(objective == "delayed") * table(stages),
        send=table(stages - 1, n - 1),
        send_back=table(stages - 1, n - 1),
        link=table(stages - 1, n - 1),
        latency=table(stages - 1),
        resident=table(n),
        saved=table(n),
        received=table(n - 1),
        workspace=table(n),
        in_flight=1 + table(stages),
        limit=np.full(stages, limit),
        micro_batches=draw(st.integers(1, 4)),
        overlap=draw(st.sampled_from(["none", "copy", "stream"])),
        objective=objective,
        paths=paths,
    )


def fits(p: ChainPartition, edges: tuple[int, ...]) -> bool:
    """The memory limit, stage by stage."""
    for s, (a, b) in enumerate(pairwise(edges)):
        arrived = int(p.received[a - 1]) if a > 0 else 0
        need = sum(int(x) for x in p.resident[a:b]) + max(int(x) for x in p.workspace[a:b])
        need += int(p.in_flight[s]) * (sum(int(x) for x in p.saved[a:b]) + arrived)
        if need > int(p.limit[s]):
            return False
    return True


def value(p: ChainPartition, edges: tuple[int, ...]) -> int:
    """The largest right side of the bounds of a step, each written out."""
    spans = list(pairwise(edges))
    last = len(spans) - 1
    f, b, u = ([sum(map(int, t[s, x:y])) for s, (x, y) in enumerate(spans)] for t in (p.forward, p.backward, p.update))
    down, up, busy = ([int(t[s, edges[s + 1] - 1]) for s in range(last)] for t in (p.send, p.send_back, p.link))
    wait = [int(x) for x in p.latency]
    m, mode = p.micro_batches, p.overlap
    w = []
    for s in range(last + 1):
        out = down[s] if s < last else 0
        back = up[s - 1] if s else 0
        w.append(f[s] + b[s] + (out + back if mode == "none" else 0))
    if p.objective == "bottleneck":
        return max(w + (busy if mode != "none" else []))
    if p.objective == "delayed":
        r = [sum(map(int, p.reduce[s, x:y])) for s, (x, y) in enumerate(spans)]
        r = [x + int(p.reduce_base[s]) * (x > 0) for s, x in enumerate(r)]
        work = [m * x + y for x, y in zip(w, u, strict=True)]
        return max(work + r + [m * x for x in busy if mode != "none"])
    right = []
    for s in range(last + 1):
        head = u[0] + sum(f[t] + b[t] + 2 * wait[t] for t in range(s))
        if mode == "copy":
            head += sum(down[t] + up[t] for t in range(s))
        if mode == "none":
            head += sum(down[:s]) + sum(up[: max(s - 1, 0)])
        way = sum(f[t] + wait[t] for t in range(s)) + (sum(down[:s]) if mode != "stream" else 0)
        right += [head + m * w[s], way + m * w[s] + u[s]]
    alone = u[0] + sum(f) + sum(b) + 2 * sum(wait) + (0 if mode == "stream" else sum(down) + sum(up))
    for s in range(last + 1):
        out = down[s] if s < last else 0
        back = up[s - 1] if s else 0
        if mode == "none":
            right += [alone + (m - 1) * (f[s] + out), alone + (m - 1) * (b[s] + back)]
            continue
        right += [alone + (m - 1) * f[s], alone + (m - 1) * b[s]]
        if mode == "copy":
            right += [alone + (m - 1) * out, alone + (m - 1) * back]
        else:
            right += [alone + m * out - f[s], alone + m * back - b[s]]
    for path in p.paths:
        terms = zip(
            path.forward + path.backward + path.update + path.send + path.send_back, f + b + u + down + up, strict=True
        )
        right.append(path.constant + sum(c * x for c, x in terms))
    return max(right)


def optimum(p: ChainPartition) -> int | None:
    """Over all boundaries; None if none fits."""
    n, stages = p.forward.shape[1], p.forward.shape[0]
    every = ((0, *inner, n) for inner in combinations(range(1, n), stages - 1))
    return min((value(p, edges) for edges in every if fits(p, edges)), default=None)


@given(problems())
@settings(max_examples=120)
@pytest.mark.parametrize("backend", [*SOLVERS, "listing"])
def test_back_ends_equal_brute_force(backend: str, problem: ChainPartition) -> None:
    """Objective, bound and status of solvers and listing, path cuts, ties and infeasible instances included."""
    best = optimum(problem)
    report = partition.solve(problem, Limits(time=30), backend=backend)
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert (report.objective, report.bound, report.status) == (best, best, Status.OPTIMAL)
    assert report.solution is not None
    assert fits(problem, report.solution)
    assert value(problem, report.solution) == best


@given(problems(cuts=False))
@settings(max_examples=120)
def test_the_dynamic_programme_equals_brute_force(problem: ChainPartition) -> None:
    """Without path cuts the dynamic programmes are exact under both objectives and every overlap."""
    best = optimum(problem)
    report = partition.solve(problem, Limits(time=30), backend="exact")
    if best is None:
        assert report.status is Status.INFEASIBLE
    else:
        assert (report.objective, report.bound, report.status) == (best, best, Status.OPTIMAL)


@given(problems())
@settings(max_examples=120)
def test_bounds_are_bounds(problem: ChainPartition) -> None:
    """The free bound and the dynamic programme's bound never exceed the optimum, path cuts or not."""
    best = optimum(problem)
    if best is None:
        return
    report = partition.solve(problem, Limits(time=30), backend="exact")
    assert problem.lower_bound() <= report.bound <= best
    assert report.objective is not None
    assert report.objective >= best
