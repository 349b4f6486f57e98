"""The objective of a partition: the largest right side of (3), or of (4) to (9)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.partition.parts import LinkResource
from pipeplan_formulations.partition.tables import Boundaries, PartitionTables
from pipeplan_formulations.partition.terms import Number, Overlap, ahead, behind, delays, load

Nanoseconds = TypeVar("Nanoseconds", int, NDArray[np.int64])


def value(problem: PartitionTables, boundaries: Boundaries, recomputing: Array) -> int:
    """The least T, with ``recomputing[s]`` more time in each backward of stage s."""
    # Sums over the layers of each stage, and entries of the cut of each link.
    edges = np.array(boundaries)
    s, a, b = np.arange(problem.stages), edges[:-1], edges[1:]
    links, cut = s[:-1], b[:-1] - 1
    forward, backward, update, weight = (
        problem.prefix[name][s, b] - problem.prefix[name][s, a] for name in ("forward", "backward", "update", "weight")
    )
    update = update + copies_update(problem, s, a, b)
    forward, backward, update = forward.tolist(), (backward + recomputing).tolist(), update.tolist()
    weight = weight.tolist()
    send, back, link = (table[links, cut].tolist() for table in (problem.send, problem.send_back, problem.link))
    out, into = [*send, 0], [0, *back]
    stages = list(zip(forward, backward, out, into, strict=True))
    loads = [load(problem.overlap, *times) for times in stages]
    if problem.objective == "bottleneck":
        once = reductions(problem, s, a, b).tolist()
        shares = [period(problem, c.stage, w, r) for c, w, r in zip(problem.through, loads, once, strict=True)]
        busy = [per_sample(problem, c.out, x) for c, x in zip(problem.through, link, strict=False)]
        return int(max(shares + (busy if problem.overlap != "none" else [])))

    # (4): ``head`` is H_s with E_0 (and V_0), ``slack`` the part of it that (4b) does without: E_0 + Σ q_t.
    reduce = reductions(problem, s, a, b).tolist()
    head = slack = update[0] + reduce[0] + weight[0]
    least = 0
    for t, (count, work) in enumerate(zip(problem.through, loads, strict=True)):
        ending = update[t] + reduce[t] + count.stage * weight[t]
        least = max(least, head + count.stage * work + max(0, ending - slack))
        latency = int(problem.latency[t]) if t < len(link) else 0
        returned = back[t] if t < len(link) else 0
        later = behind(problem.overlap, backward[t], latency, into[t], returned)
        head += ahead(problem.overlap, forward[t], latency, out[t]) + later
        slack += later
    # (5), (8) and (9): ``head`` is R.
    hops = [Hop(*times) for times in zip([0, *out], [*into, 0], [0, *problem.latency.tolist(), 0], strict=True)]
    for t, (times, count) in enumerate(zip(stages, problem.through, strict=True)):
        least = max(least, head + max(delays(problem.overlap, count, *times, weight[t])))
        shared = delays_of_resources(problem, t, *times[:2], hops[t], hops[t + 1], lambda at, row: int(row[cut[at]]))
        least = max(least, head + max(shared, default=0))
    # (6).
    lengths = forward, backward, update, reduce, send, back
    paths = (path.length(*lengths, lambda at, row: int(row[cut[at]])) for path in problem.paths)
    return int(max([least, *paths]))


def per_sample(problem: PartitionTables, count: int, time: int) -> int:
    """(3) of a link that carries ``count`` micro-batches per step: its busy time per sample, rounded down."""
    return count * time // problem.divisor


def period(problem: PartitionTables, count: int, time: Nanoseconds, once: Nanoseconds) -> Nanoseconds:
    """(3) of a stage with ``count`` micro-batches and the time ``once`` per step: its busy time per sample."""
    return -(-(count * time + once) // problem.divisor)


def reductions(problem: PartitionTables, s: Array, a: Array, b: Array) -> Array:
    """R_s of the stages s on layers a … b − 1; arrays that broadcast."""
    total, some = problem.prefix["reduce"], problem.prefix["reduced"]
    result: Array = total[s, b] - total[s, a]
    result = result + problem.reduce_base[s] * (some[s, b] > some[s, a])
    for tie in problem.ties:
        result = result + np.array(tie.reduce)[s] * tie.has_copy(a, b) + np.array(tie.home)[s] * tie.is_home(a, b)
    return result


def copies_update(problem: PartitionTables, s: Array, a: Array, b: Array) -> Array:
    """Contribution of copies of tied weights to U_s, for stages s on layers a … b − 1; arrays that broadcast."""
    result: Array = np.zeros(np.broadcast_shapes(s.shape, a.shape, b.shape), np.int64)
    for tie in problem.ties:
        result = result + np.array(tie.update)[s] * tie.has_copy(a, b)
    return result


class Hop(NamedTuple):
    """f, g and l of a link."""

    send: Number
    send_back: Number
    latency: Number


def delays_of_resources(
    problem: PartitionTables,
    stage: int,
    forward: Number,
    backward: Number,
    into: Hop,
    out: Hop,
    busy: Callable[[int, Array], Number],
) -> Iterator[Number]:
    """The delays e of (9), one for each link resource of the stage.

    Parameters
    ----------
    into, out : Hop
        The links before and behind the stage; zeros beyond the ends.
    busy : callable
        ``busy(link, row)``: the entry of the row for the cut at which the link lies.
    """
    for resource in problem.resources:
        if resource.stage != stage:
            continue
        total = busy(resource.link, resource.busy)
        if resource.beyond is not None:
            total = total + busy(resource.link + 1, resource.beyond)
        yield total - _alone(problem.overlap, resource, backward if resource.back else forward, into, out)


def _alone(overlap: Overlap, resource: LinkResource, action: Number, into: Hop, out: Hop) -> Number:
    """The part of R from the start of the resource's first transfer to the end of its last, for one micro-batch."""
    if overlap == "stream":
        return action
    if resource.beyond is None:
        return into.send_back if resource.back else out.send
    if resource.back:
        return out.send_back + out.latency + action + into.send_back
    return into.send + into.latency + action + out.send
