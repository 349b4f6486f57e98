"""A model that is a graph, priced for the bottleneck on devices that are all joined by the same link.

Stages hand tensors on from one to the next, as the simulator and the executor do, so a skip connection pays at every
border that it crosses, once. A stage of r replicas works on ⌈M / r⌉ of the M micro-batches of a step, and sums its
gradients once a step; its load is what that comes to per micro-batch.

What is handed to the solver relaxes small things, so that its bound is one. The links of replicas count as if every
pair of replicas had one. Where bytes cannot be kept exact, each tensor's time on a link is rounded down. Where some
layers have no parameters, the latency of reductions is left out.
"""

from dataclasses import replace
from itertools import pairwise
from math import ceil, gcd

import numpy as np

from pipeplan.chain import UNLIMITED, Array, Boundaries
from pipeplan.cluster import Cluster, Link, Overlap
from pipeplan.job import Recompute
from pipeplan.network import Ring
from pipeplan.pricing import device_room
from pipeplan.schedules import Family
from pipeplan.search.candidates import Candidate, in_flight
from pipeplan.search.space import Space
from pipeplan.structure import Mode as Width
from pipeplan_formulations.graph import GraphPartition, Line, Mode, Star

LARGEST = 2**52
"""Sums that solvers keep exact."""
MOST_WIDTHS = 64
"""Most kinds and numbers of replicas that are considered together."""


def common_link(cluster: Cluster) -> Link | None:
    """The link that joins any two devices, or None if there are several kinds of it."""
    links = {node.link for node in cluster.nodes if len(node.kinds) > 1}
    if len(cluster.nodes) > 1 and cluster.network is not None:
        links.add(cluster.network)
    return links.pop() if len(links) == 1 else Link() if not links else None


def widths(space: Space, size: int) -> list[Width]:
    """Every class of devices with every number of replicas that the job allows."""
    count = space.job.batch // size
    return [
        Width(c, r)
        for c, each in enumerate(space.classes)
        for r in range(1, min(len(each.devices), count) + 1)
        if not space.job.replicas or r in space.job.replicas
    ]


def graph_problem(space: Space, size: int, family: Family, link: Link) -> GraphPartition:
    """The partition problem of the space's model at one micro-batch size, in nanoseconds and bytes."""
    model, classes = space.model, space.classes
    index = {name: i for i, name in enumerate(model.names)}
    readers: list[list[int]] = [[] for _ in model.layers]
    for i, layer in enumerate(model.layers):
        for source in layer.inputs:
            readers[index[source]].append(i)
    stars = tuple(Star(i, tuple(sorted(set(found)))) for i, found in enumerate(readers) if found)
    ways = widths(space, size)
    widest = max(way.replicas for way in ways)
    modes = tuple(_mode(space, size, family, link, way, stars, widest) for way in ways)
    if all(mode.limit == UNLIMITED or not mode.possible[1].any() for mode in modes):
        modes = tuple(_plain(mode) for mode in modes)
    return GraphPartition(
        groups=len(model.layers),
        edges=tuple(dict.fromkeys((star.source, reader) for star in stars for reader in star.readers)),
        stars=stars,
        pools=(*(len(each.devices) for each in classes), *((max(space.job.depths),) if space.job.depths else ())),
        modes=modes,
        route="relay",
    )


def load(candidate: Candidate, boundaries: Boundaries) -> int:
    """The largest load of a partition: what the chain's evaluation says, with the reductions of replicas."""
    problem = candidate.problem
    value = problem.evaluate(boundaries)
    if max(candidate.replicas) == 1:
        return value
    chain, again, many = candidate.chain, candidate.recompute(boundaries), candidate.micro_batches
    for s, (a, b) in enumerate(pairwise(boundaries)):
        busy = int(chain.forward[s, a:b].sum() + chain.backward[s, a:b].sum())
        busy += sum(int(chain.forward[s, i]) for i in again[s])
        if chain.overlap is Overlap.NONE:
            busy += int(chain.send[s, b - 1]) if b < chain.layers else 0
            busy += int(chain.send[s - 1, a - 1]) if a else 0
        step = ceil(many / candidate.replicas[s]) * busy + int(chain.reduce[s, a:b].sum())
        step += int(chain.reduce_base[s]) if chain.reduce[s, a:b].any() else 0
        value = max(value, -(-step // many))
    return value


def _mode(
    space: Space,
    size: int,
    family: Family,
    link: Link,
    way: Width,
    stars: tuple[Star, ...],
    widest: int,
) -> Mode:
    """One class with so many replicas."""
    classes = space.classes
    each, r, many = classes[way.device_class], way.replicas, space.job.batch // size
    table = space.prices.table(each.kind, size)
    sizes = np.array([table.output[star.source] for star in stars], np.int64)
    sending, wire = _sending(sizes, link)
    share = -(-many // r)
    ring = Ring(r, link)
    reduce = ring.times(space.prices.parameters)
    base = ring.base if reduce.all() else 0  # a stage without parameters would not pay it
    optimizer = -(-space.prices.optimizer // (r if space.job.zero1 else 1))
    resident = 2 * space.prices.parameters + optimizer
    none = 0 * sending
    waits = space.cluster.overlap is Overlap.NONE
    work = table.forward + table.backward
    time = np.stack([share * work + reduce, share * (work + table.forward) + reduce])
    sent = sending if waits else none
    lines = [Line(time, sent, sent, base, wire, share, share=many)]
    if not waits and sending.any():
        # Between r and r' replicas a link serves one in lcm(r, r') ≤ r r' micro-batches, or more.
        lines += [Line(0 * time, *pair, 0, wire, share=r * widest) for pair in ((sending, none), (none, sending))]
    workspace = table.workspace * (2 if family.two_lanes else 1)
    again = table.output < table.saved if space.job.recompute is Recompute.CHOOSE else np.zeros_like(table.saved, bool)
    behind = range(len(space.cluster.devices))
    return Mode(
        name=f"{r} {each.kind.name}",
        takes=(*(r * (c == way.device_class) for c in range(len(classes))), *((1,) if space.job.depths else ())),
        lines=tuple(lines),
        fixed=np.stack([resident, resident]),
        held=np.stack([table.saved, table.output]),
        peak=np.stack([workspace, workspace + table.saved]),
        received=sizes,
        limit=device_room(each.kind, space.job),
        flow=r,
        in_flight=np.array([in_flight(family, (r, *(1,) * b), many, space.job.objective)[0] for b in behind], np.int64),
        possible=np.stack([np.ones_like(again), again]),
    )


def _sending(sizes: Array, link: Link) -> tuple[Array, int]:
    """Bytes as nanoseconds, and a divisor that they still need; rounded down without one, where sums are too large."""
    if link.bandwidth is None:
        return 0 * sizes, 1
    factor, wire = 10**9 // gcd(10**9, link.bandwidth), link.bandwidth // gcd(10**9, link.bandwidth)
    if factor * int(sizes.sum()) < LARGEST:
        return factor * sizes, wire
    return np.array([int(size) * 10**9 // link.bandwidth for size in sizes], np.int64), 1


def _plain(mode: Mode) -> Mode:
    """Without the variant that recomputes."""
    rows = {name: getattr(mode, name)[:1] for name in ("fixed", "held", "peak", "possible")}
    return replace(mode, lines=tuple(replace(line, time=line.time[:1]) for line in mode.lines), **rows)
