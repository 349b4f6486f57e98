"""Chain partition instances, and an evaluation and brute force of their own: the equations once more, term by term."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from pipeplan_formulations.partition import ChainPartition, PathCut
from pipeplan_formulations.partition.problem import Boundaries
from pipeplan_formulations.report import Report, Status, Stop


def chain_partition(forward, backward, *, links=0, micro_batches=4, overlap="copy", objective="step", limit=2**40):
    """An instance on equal or unequal devices with little to say but the times; sizes are one byte a layer."""
    forward, backward = np.atleast_2d(np.array(forward)), np.atleast_2d(np.array(backward))
    stages, layers = forward.shape
    cuts = np.full((stages - 1, layers - 1), links)
    ones = np.ones(layers, np.int64)
    return ChainPartition(
        forward=forward,
        backward=backward,
        update=np.zeros_like(forward),
        send=cuts,
        send_back=cuts,
        link=cuts,
        latency=np.zeros(stages - 1, np.int64),
        resident=ones,
        saved=ones,
        received=np.zeros(layers - 1, np.int64),
        workspace=np.zeros(layers, np.int64),
        in_flight=np.arange(stages, 0, -1),
        limit=np.full(stages, limit),
        micro_batches=micro_batches,
        overlap=overlap,
        objective=objective,
    )


def random_chain(seed: int, stages: int, layers: int, **settings) -> ChainPartition:
    """Unequal layers on equal devices, backward twice the forward."""
    times = np.random.default_rng(seed).integers(1_000_000, 9_000_000, layers)
    return chain_partition(np.tile(times, (stages, 1)), np.tile(2 * times, (stages, 1)), **settings)


def nothing_known(problem: ChainPartition) -> Report[Boundaries]:
    """A start that says nothing, so that a solver has to find and prove everything itself."""
    return Report(Status.UNKNOWN, Stop.TIME, None, problem.lower_bound(), 0.0, "none", "", 0, None)


def every_partition(problem: ChainPartition) -> Iterator[Boundaries]:
    """All boundaries, whether they fit or not."""
    n = problem.forward.shape[1]
    for inner in itertools.combinations(range(1, n), problem.forward.shape[0] - 1):
        yield (0, *inner, n)


def memory_of(problem: ChainPartition, boundaries: Boundaries, s: int) -> int:
    """Left side of (1), layer by layer."""
    layers = range(boundaries[s], boundaries[s + 1])
    received = int(problem.received[layers[0] - 1]) if s else 0
    flight = int(problem.in_flight[s]) * (sum(int(problem.saved[i]) for i in layers) + received)
    return sum(int(problem.resident[i]) for i in layers) + flight + max(int(problem.workspace[i]) for i in layers)


def fits(problem: ChainPartition, boundaries: Boundaries) -> bool:
    """(1) for every stage."""
    return all(memory_of(problem, boundaries, s) <= limit for s, limit in enumerate(problem.limit))


def objective(problem: ChainPartition, boundaries: Boundaries) -> int:
    """The largest right side of (3), or of (4) to (6)."""
    p, stages = problem, range(len(boundaries) - 1)
    cut = [b - 1 for b in boundaries[1:-1]]

    def total(table, s):
        return sum(int(table[s, i]) for i in range(boundaries[s], boundaries[s + 1]))

    forward, backward, update = ([total(t, s) for s in stages] for t in (p.forward, p.backward, p.update))
    send, back, link = ([int(t[s, c]) for s, c in enumerate(cut)] for t in (p.send, p.send_back, p.link))
    latency, many, last = [int(x) for x in p.latency], p.micro_batches, stages[-1]
    waits = p.overlap == "none"
    work = [
        forward[s] + backward[s] + (send[s] if waits and s < last else 0) + (back[s - 1] if waits and s > 0 else 0)
        for s in stages
    ]
    if p.objective == "bottleneck":
        return max(work if waits else work + link)

    sides = []
    for s in stages:  # (4): forwards before it, M micro-batches, backwards after it
        way = sum(forward[t] + backward[t] + 2 * latency[t] for t in range(s)) + update[0]
        if p.overlap == "copy":
            way += sum(send[:s]) + sum(back[:s])
        elif waits:
            way += sum(send[:s]) + sum(back[: max(s - 1, 0)])
        sides.append(way + many * work[s])
    alone = update[0] + sum(forward) + sum(backward) + 2 * sum(latency)
    if p.overlap != "stream":
        alone += sum(send) + sum(back)
    for s in stages:  # (5) for devices
        out = send[s] if waits and s < last else 0
        into = back[s - 1] if waits and s > 0 else 0
        sides += [alone + (many - 1) * (forward[s] + out), alone + (many - 1) * (backward[s] + into)]
    for s, (f, g) in enumerate(zip(send, back, strict=True)):  # (5) for links
        if p.overlap == "copy":
            sides += [alone + (many - 1) * f, alone + (many - 1) * g]
        elif p.overlap == "stream":
            sides += [alone - forward[s] + many * f, alone - backward[s + 1] + many * g]
    for path in p.paths:  # (6)
        rows = [(path.forward, forward), (path.backward, backward), (path.update, update)]
        rows += [(path.send, send), (path.send_back, back)]
        sides.append(path.constant + sum(a * x for row, times in rows for a, x in zip(row, times, strict=True)))
    return max(sides)


def brute_force(problem: ChainPartition) -> int | None:
    """The optimum over all partitions; None if none fits."""
    return min((objective(problem, b) for b in every_partition(problem) if fits(problem, b)), default=None)


@st.composite
def chain_partitions(draw, layers=7, stages=4, cuts=2, roomy=False) -> ChainPartition:
    """Small instances of every sort: ties (times 0 to 3), large numbers, unequal devices, tight and hopeless memory."""
    n = draw(st.integers(1, layers))
    depth = draw(st.integers(1, min(n, stages)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    largest = draw(st.sampled_from([3, 40, 10**6, 10**10]))
    linked = draw(st.sampled_from([0, 1, 5]))
    memory = "free" if roomy else draw(st.sampled_from(["free", "tight", "tight", "scarce"]))
    equal = draw(st.booleans())
    kind = draw(st.sampled_from(["step", "step", "step", "bottleneck"]))

    def table(rows, columns, top):
        values = rng.integers(0, top + 1, (rows, columns))
        return np.tile(values[:1], (rows, 1)) if equal and rows else values

    many = draw(st.integers(1, 5))

    def counts(length):
        return tuple(int(x) for x in rng.integers(0, many + 1, length))

    paths = tuple(
        PathCut(counts(depth), counts(depth), counts(depth), counts(depth - 1), counts(depth - 1), int(rng.integers(9)))
        for _ in range(draw(st.integers(0, cuts)) if kind == "step" else 0)
    )
    problem = ChainPartition(
        forward=table(depth, n, largest),
        backward=table(depth, n, 2 * largest),
        update=table(depth, n, largest // 2),
        send=table(depth - 1, n - 1, linked * largest),
        send_back=table(depth - 1, n - 1, linked * largest),
        link=table(depth - 1, n - 1, linked * largest),
        latency=rng.integers(0, largest + 1, depth - 1),
        resident=rng.integers(0, 10, n),
        saved=rng.integers(0, 6, n),
        received=rng.integers(0, 6, n - 1),
        workspace=rng.integers(0, 10, n),
        in_flight=rng.integers(1, 4, depth),
        limit=np.full(depth, 2**62),
        micro_batches=many,
        overlap=draw(st.sampled_from(["none", "copy", "stream"])),
        objective=kind,
        paths=paths,
    )
    if memory == "free":
        return problem
    # Just enough for one partition, so that some fit and others do not; or less than that, so that perhaps none does.
    inner = np.sort(rng.choice(np.arange(1, n), depth - 1, replace=False)) if depth > 1 else []
    need = np.array([memory_of(problem, (0, *map(int, inner), n), s) for s in range(depth)])
    spare = rng.integers(0, 6, depth) if memory == "tight" else -rng.integers(0, 3, depth)
    return replace(problem, limit=np.maximum(need + spare, 0))


def unequal_chain(seed: int, stages: int, layers: int, **settings) -> ChainPartition:
    """Devices up to twice as slow as others, priced links: partitions differ in R, and labels are many."""
    rng = np.random.default_rng(seed)
    times = (rng.lognormal(0, 0.6, layers) * 1e6).astype(np.int64)
    slowness = rng.choice([10, 15, 20], stages)[:, None]
    forward, backward = times * slowness // 10, times * slowness // 5
    links = (rng.lognormal(0, 0.6, layers - 1) * 1e6 * layers / stages).astype(np.int64)
    return chain_partition(forward, backward, links=links, **settings)
