"""Small joint problems, and an enumeration of all choices, with bytes and recomputed layers counted independently."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np

from helpers import exhaustive_orders
from helpers.partitions import every_partition, memory_of, random_tie, reduction
from helpers.pipeline_schedules import in_no_less
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.joint import Choice, JointPipeline
from pipeplan_formulations.joint.box import Box
from pipeplan_formulations.joint.relaxed import scheduled
from pipeplan_formulations.partition import ChainPartition
from pipeplan_formulations.schedule import PipelineSchedule


def random_joint(seed: int, layers: int = 5, stages: int = 3, most: int = 3) -> JointPipeline:
    """Up to five layers on up to three unequal devices, up to three micro-batches, each with memory of its own.

    Memory is free, tight or less than that; layers may be recomputed; whole backwards mostly take as long as both
    parts, sometimes less or more; some problems have replicas, reductions, tied weights or constraints.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, layers + 1))
    depth = int(rng.integers(1, min(n, stages) + 1))
    top = int(rng.choice([2, 9, 50]))

    def table(rows: int, columns: int, largest: int) -> np.ndarray:
        values = rng.integers(0, largest + 1, (rows, columns))
        return np.tile(values[:1], (rows, 1)) if rows and seed % 2 else values

    many = int(rng.integers(1, most + 1))
    linked = int(rng.choice([0, 0, top]))
    weight = table(depth, n, top)
    chain = ChainPartition(
        forward=table(depth, n, top),
        backward=table(depth, n, top),
        weight=weight,
        update=table(depth, n, int(rng.choice([0, top]))),
        send=table(depth - 1, n - 1, linked),
        send_back=table(depth - 1, n - 1, linked),
        link=table(depth - 1, n - 1, linked),
        latency=rng.integers(0, linked + 1, depth - 1),
        resident=rng.integers(0, 6, n),
        saved=rng.integers(0, 9, n),
        output=rng.integers(0, 4, n),
        received=rng.integers(0, 4, n - 1),
        workspace=rng.integers(0, 6, n),
        in_flight=np.ones(depth, np.int64),
        limit=np.full(depth, 2**40),
        micro_batches=many,
        overlap=str(rng.choice(["none", "copy", "stream"])),
    )
    if rng.integers(3):
        chain = replace(chain, recomputable=rng.integers(0, 3, n) > 0)
    if rng.integers(3) == 0:
        chain = replace(chain, reduce=rng.integers(0, top + 1, (depth, n)), reduce_base=rng.integers(0, top, depth))
    if n > 1 and rng.integers(4) == 0:
        chain = replace(chain, ties=(random_tie(rng, depth, n, top),))
    if n > 1 and rng.integers(4) == 0:
        chain = replace(chain, cuts=rng.integers(0, 4, n - 1) > 0)
    if rng.integers(4) == 0:
        chain = replace(chain, where=rng.integers(0, 7, (depth, n)) > 0)
    if rng.integers(4):
        edges = (0, *sorted(rng.choice(np.arange(1, n), depth - 1, replace=False).tolist()), n)
        held = replace(chain, in_flight=rng.integers(1, 4, depth))
        spare = rng.integers(-2, 5, depth)
        need = [memory_of(held, edges, s, range(*edges[s : s + 2]) if rng.integers(2) else ()) for s in range(depth)]
        chain = replace(chain, limit=np.maximum(np.array(need) + spare, 0))
    joined = chain.backward + weight
    if rng.integers(3) == 0:
        by = int(rng.choice([2, 2 * top]))
        joined = np.maximum(joined + rng.integers(-by, by + 1, joined.shape), 0)
    if rng.integers(2):
        chain = replace(chain, hides=np.minimum(joined, weight))
    return JointPipeline(chain, joined)


def every_instance(problem: JointPipeline) -> Iterator[PipelineSchedule]:
    """The schedule problem, in bytes, of every partition, recomputed set and split that is allowed and may be best."""
    chain = problem.chain
    stages, n = chain.forward.shape
    again = [i for i in range(n) if chain.recomputable[i]]
    for edges in every_partition(chain):
        if chain.cuts is not None and not all(chain.cuts[b - 1] for b in edges[1:-1]):
            continue
        spans = [range(a, b) for a, b in pairwise(edges)]
        if chain.where is not None and not all(chain.where[s, i] for s, own in enumerate(spans) for i in own):
            continue
        ways = []
        for s, own in enumerate(spans):
            sets = [x for size in range(len(own) + 1) for x in combinations([i for i in own if i in again], size)]
            rows = [_row(chain, edges, s, x) for x in sets]
            ways.append([row for row in set(rows) if row[2] >= row[1] and not any(_worse(row, o) for o in rows)])
        same = bool((problem.joined == chain.backward + chain.weight).all())
        for rows in product(*ways):
            for split in [(True,) * stages] if same else product([True, False], repeat=stages):
                yield _instance(problem, edges, rows, split)


def brute_force(problem: JointPipeline) -> int | None:
    """The least step time; None if nothing fits."""
    best = None
    for instance in sorted(every_instance(problem), key=in_no_less):
        if best is not None and in_no_less(instance) >= best:
            break
        report = exhaustive_orders.solve(instance, Limits(time=600))
        if report.objective is not None and (best is None or report.objective < best):
            best = report.objective
    return best


def every_choice(problem: JointPipeline, box: Box) -> Iterator[PipelineSchedule]:
    """The schedule problem of every choice of a box that fits, with its counts for bytes."""
    spans = [range(a, b + 1) for a, b in zip(box.low, box.high, strict=True)]
    counts = [range(a, b + 1) for a, b in zip(box.fewest, box.most, strict=True)]
    splits = [(True, False) if own is None else (own,) for own in box.split]
    for edges in product(*spans):
        if all(a < b for a, b in pairwise(edges)):
            for in_flight, split in product(product(*counts), product(*splits)):
                instance = scheduled(problem, Choice(edges, in_flight, split))
                if instance is not None:
                    yield instance


def _row(chain: ChainPartition, edges: tuple[int, ...], s: int, again: tuple[int, ...]) -> tuple[int, int, int]:
    """Extra time, bytes held for a micro-batch, and bytes for all of them."""
    none, one = (memory_of(replace(chain, in_flight=np.full(len(edges) - 1, k)), edges, s, again) for k in (0, 1))
    return sum(int(chain.forward[s, i]) for i in again), one - none, int(chain.limit[s]) - none


def _worse(row: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """True if the other set dominates: better in one figure and no worse in any."""
    at_least = other[0] <= row[0] and other[1] <= row[1] and other[2] >= row[2]
    return at_least and other != row


def _instance(
    problem: JointPipeline, edges: tuple[int, ...], rows: tuple[tuple[int, int, int], ...], split: tuple[bool, ...]
) -> PipelineSchedule:
    chain, stages = problem.chain, range(len(edges) - 1)

    def total(table: np.ndarray, s: int) -> int:
        return int(table[s, edges[s] : edges[s + 1]].sum())

    forward = [total(chain.forward, s) for s in stages]
    backward = [total(chain.backward if split[s] else problem.joined, s) + rows[s][0] for s in stages]
    ending = [total(chain.update, s) + reduction(chain, edges, s) for s in stages]
    for tie in chain.ties:
        for s in stages:
            own = range(edges[s], edges[s + 1])
            ending[s] += tie.update[s] if tie.layers[0] not in own and any(i in own for i in tie.layers) else 0
    lag, lag_back = chain.latency.tolist(), chain.latency.tolist()
    for s in stages[:-1]:
        there, back = int(chain.send[s, edges[s + 1] - 1]), int(chain.send_back[s, edges[s + 1] - 1])
        if chain.overlap == "none":
            forward[s] += there
            backward[s + 1] += back
        elif chain.overlap == "copy":
            lag[s] += there
            lag_back[s] += back
        else:
            lag[s] += max(there - forward[s], 0)
            lag_back[s] += max(back - backward[s + 1], 0)
    held = tuple(row[1] for row in rows)
    return PipelineSchedule(
        device=tuple(stages),
        micro_batches=chain.micro_batches if chain.counts is None else int(chain.counts[0]),
        forward=tuple(forward),
        backward=tuple(backward),
        weight=tuple(total(chain.weight, s) if split[s] else 0 for s in stages),
        split=split,
        lag=tuple(lag),
        lag_back=tuple(lag_back),
        ending=tuple(ending),
        taken=held,
        freed=tuple(0 if own else h for own, h in zip(split, held, strict=True)),
        freed_by_weight=tuple(h if own else 0 for own, h in zip(split, held, strict=True)),
        base=(0,) * len(held),
        limit=tuple(row[2] for row in rows),
    )
