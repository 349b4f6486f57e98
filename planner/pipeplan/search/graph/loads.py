"""The graph partition problem of a model: stage loads for the bottleneck, on devices that one kind of link joins.

Stages pass tensors on from one to the next, as in the simulator and the executor. So a skip connection costs a transfer
at every border that it crosses, once, with the bytes of the sending stage's device kind. A stage of r replicas runs
⌈M / r⌉ of the M micro-batches of a step, and reduces its gradients once per step. Its load is that time per sample.

::

    mode (kind, r)  ──border──▶  (kind', r')      a link between replicas has ⌈M / lcm(r, r')⌉ micro-batches per step

The solver gets the prices of the search along the chain. The exception are transfer times that cannot be kept exact:
each tensor's time on a link is then rounded down, so that the bound stays valid.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, lcm

import numpy as np

from pipeplan.core.cluster import Link, Overlap
from pipeplan.core.job import Recompute
from pipeplan.costs.chain import UNLIMITED, Array
from pipeplan.costs.collectives import all_reduce
from pipeplan.costs.pricing import usable_memory
from pipeplan.costs.table import Table
from pipeplan.schedules import Family
from pipeplan.search.space.candidates import in_flight
from pipeplan.search.space.device_groups import Mode as Width
from pipeplan.search.space.space import Space
from pipeplan_formulations.graph import Border, GraphMode, GraphPartition, Line, Star

LARGEST = 2**52
"""Sums that solvers keep exact."""


def graph_problem(
    space: Space, size: int, family: Family, link: Link, choices: Sequence[Width]
) -> tuple[GraphPartition, list[Width]]:
    """The partition problem of the space's model at one micro-batch size, in nanoseconds and bytes.

    Returns
    -------
    GraphPartition
    list of Width
        The width of each mode: one of ``choices``, once for each kind of sender before it whose bytes differ.
    """
    model, classes = space.model, space.classes
    index = {name: i for i, name in enumerate(model.names)}
    readers: list[list[int]] = [[] for _ in model.layers]
    for i, layer in enumerate(model.layers):
        for source in layer.inputs:
            readers[index[source]].append(i)
    # One star per layer whose output other layers read.
    stars = tuple(Star(i, tuple(sorted(set(found)))) for i, found in enumerate(readers) if found)
    sources = [star.source for star in stars]
    tables = [space.prices.table(each.kind, size) for each in classes]
    senders = {tables[width.device_class].output[sources].tobytes(): tables[width.device_class] for width in choices}
    # A mode for each width and each kind of sender with output bytes of its own.
    pairings = [(width, sent, before) for width in choices for sent, before in senders.items()]
    modes = tuple(_mode(space, size, family, link, width, before, sources) for width, _, before in pairings)
    if all(mode.limit == UNLIMITED or not mode.possible[1].any() for mode in modes):
        modes = tuple(_plain(mode) for mode in modes)
    chosen = [width for width, _, _ in pairings]
    problem = GraphPartition(
        groups=len(model.layers),
        edges=tuple(dict.fromkeys((star.source, reader) for star in stars for reader in star.readers)),
        stars=stars,
        pools=tuple(len(each.devices) for each in classes),
        modes=modes,
        route="relay",
        depths=tuple(sorted(set(space.job.depths))),
    )
    # Borders: transfer times between consecutive modes, shared by pairs with equal bytes and counts.
    outputs = [tables[width.device_class].output[sources] for width in chosen]
    overlaps = space.cluster.overlap is not Overlap.NONE and link.bandwidth is not None
    if not stars or (len(senders) == 1 and not overlaps):
        return problem, chosen
    borders: dict[tuple[bytes, int], Border] = {}
    pairs = np.full((len(chosen), len(chosen)), -1)
    for m, width in enumerate(chosen):
        for behind, (other, expects, _) in enumerate(pairings):
            if expects == outputs[m].tobytes():
                count = _busiest(space, size, width.replicas, other.replicas)
                key = expects, count
                if key not in borders:
                    sending, divisor = _sending(outputs[m] if overlaps else 0 * outputs[m], link)
                    borders[key] = Border(sending, divisor, count, space.job.batch)
                pairs[m, behind] = list(borders).index(key)
    return replace(problem, borders=tuple(borders.values()), pairs=pairs), chosen


def _busiest(space: Space, size: int, replicas: int, behind: int) -> int:
    """Micro-batches per step on the busiest link between two stages: that of a pair of devices, or a node's card."""
    period = lcm(replicas, behind) if len(space.cluster.nodes) == 1 else min(replicas, behind)
    return -(-(space.job.batch // size) // period)


def _mode(
    space: Space, size: int, family: Family, link: Link, width: Width, before: Table, sources: Sequence[int]
) -> GraphMode:
    """The mode of one width, behind a stage whose device kind has the table ``before``."""
    classes = space.classes
    each, r, many = classes[width.device_class], width.replicas, space.job.batch // size
    table = space.prices.table(each.kind, size)
    received = before.output[sources]
    share = -(-many // r)
    ring = all_reduce(r, link)
    reduce = ring.times(space.prices.kept.parameters(each.kind))
    resident = space.prices.kept.resident(each.kind, r)
    waits = space.cluster.overlap is Overlap.NONE
    # Transfer times count in the load only where devices wait while they send.
    # One divisor for both directions, which have bytes of their own.
    crossing, divisor = _sending(np.concatenate([table.output[sources], received]) * int(waits), link)
    leave, enter = np.split(crossing, 2)
    # Rows of the arrays: variant without recomputation, variant with it; columns: layers.
    work = table.forward + table.backward
    time = np.stack([share * work + reduce, share * (work + table.forward) + reduce])
    again = table.output < table.saved if space.job.recompute is Recompute.CHOOSE else np.zeros_like(table.saved, bool)
    behind = range(len(space.cluster.devices))
    return GraphMode(
        name=f"{r} {each.kind.name}",
        takes=tuple(r * (c == width.device_class) for c in range(len(classes))),
        lines=(Line(time, leave, enter, ring.base, divisor, share, space.job.batch, reduce > 0),),
        fixed=np.stack([resident, resident]),
        held=np.stack([table.saved, table.output]),
        peak=np.stack([table.workspace, table.workspace + table.saved]),
        received=received,
        limit=usable_memory(each.kind, space.job),
        flow=r,
        in_flight=np.array([in_flight(family, (r, *(1,) * b), many, space.job.objective)[0] for b in behind], np.int64),
        possible=np.stack([np.ones_like(again), again]),
    )


def _sending(sizes: Array, link: Link) -> tuple[Array, int]:
    """Bytes as scaled nanoseconds, and the scale's divisor; where sums are too large, rounded down with divisor 1."""
    if link.bandwidth is None:
        return 0 * sizes, 1
    factor, divisor = 10**9 // gcd(10**9, link.bandwidth), link.bandwidth // gcd(10**9, link.bandwidth)
    if factor * int(sizes.sum()) < LARGEST:
        return factor * sizes, divisor
    return np.array([int(size) * 10**9 // link.bandwidth for size in sizes], np.int64), 1


def _plain(mode: GraphMode) -> GraphMode:
    """The mode without the variant that recomputes."""
    rows = {name: getattr(mode, name)[:1] for name in ("fixed", "held", "peak", "possible")}
    return replace(mode, lines=tuple(replace(line, time=line.time[:1]) for line in mode.lines), **rows)
