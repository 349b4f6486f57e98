"""Links shared by the transfers of a step, such as network cards of nodes with some replicas of a stage only.

::

    stage 0   d0 d1 d2        from d0, d1, d2 to d4, and from d3 to d5 and d6, tensors leave node 0 through its card;
    stage 1   d3 │ d4         from d0 to d3 they stay inside
    stage 2      │ d5 d6
            node 0 │ node 1
"""

from collections import Counter
from collections.abc import Callable
from functools import cache, reduce
from itertools import pairwise
from math import lcm

import numpy as np

from pipeplan.core.cluster import Cluster, Device, Link, Overlap, StageDevices
from pipeplan.costs.chain import Array, Chain
from pipeplan.costs.network import transfer
from pipeplan.costs.occupancy import occupancies
from pipeplan_formulations.partition import LinkResource


def shared_link_loads(
    cluster: Cluster, groups: StageDevices, micro_batches: int, occupancy: Callable[[int, Link], Array]
) -> tuple[LinkResource, ...]:
    """Load inequalities of links: for every boundary that leaves a node, and for pairs of consecutive boundaries.

    Parameters
    ----------
    occupancy : callable
        ``occupancy(s, link)``: for each layer boundary, nanoseconds that a micro-batch's transfer between stages
        s and s + 1 occupies the link.
    """
    found: list[LinkResource] = []
    for back in (False, True):
        before: dict[str, Array] = {}
        for s, (a, b) in enumerate(pairwise(groups)):
            if len({device.node for device in (*a, *b)}) == 1:
                continue  # no card serves those around it: one leads into this node, the other out of it
            source, target = (b, a) if back else (a, b)
            loads = {
                resource: tuple(own.items()) for resource, own in _loads(cluster, source, target, micro_batches).items()
            }
            # Nanoseconds of each load: most nodes have the same one.
            times = {
                load: np.sum([count * occupancy(s, link) for link, count in load], axis=0) for load in {*loads.values()}
            }
            busy = {resource: times[load] for resource, load in loads.items()}
            found.append(LinkResource(s, reduce(np.maximum, times.values()), back=back))
            if cluster.overlap is not Overlap.STREAM:
                each = {(id(before[one]), id(own)): (before[one], own) for one, own in busy.items() if one in before}
                pairs = {(one.tobytes(), own.tobytes()): (one, own) for one, own in each.values()}
                found += [LinkResource(s - 1, first, second, back) for first, second in pairs.values()]
            before = busy
    return tuple(found)


def surplus(cluster: Cluster, chain: Chain, link: int, period_index: int) -> Array:
    """For each layer boundary, nanoseconds by which a pair of replicas occupies its link longer than the fastest pair.

    ``period_index``: the number of a micro-batch between the pair, or its remainder by the period of the boundary.
    """
    source, target = chain.groups[link], chain.groups[link + 1]
    own = cluster.link(source[period_index % len(source)], target[period_index % len(target)])
    slower: Array = occupancies(own, chain.boundary[link]) - chain.send[link]
    return slower


def slower_pairs(cluster: Cluster, chain: Chain, micro_batches: int) -> Array:
    """For each stage, nanoseconds of σ in the warm-up bound: what its two micro-batches lose by slow pairs of replicas.

    Micro-batch 0 goes to the last stage and comes back; then the last one of the stage's first replica goes on to the
    first stage. Over each boundary the least of all places where it may lie counts. 0 where each boundary has one pair;
    where devices wait or stream nothing is counted.
    """
    links = range(chain.stages - 1)
    if cluster.overlap is not Overlap.COPY or max(chain.replicas) == 1:
        return np.zeros(chain.stages, np.int64)

    @cache
    def longer(link: int, micro_batch: int) -> int:
        source, target = (group[micro_batch % len(group)] for group in chain.groups[link : link + 2])
        late = cluster.link(source, target).latency - int(chain.latency[link])
        return late + int(surplus(cluster, chain, link, micro_batch).min())

    first = [longer(link, 0) for link in links]
    found = []
    for s, replicas in enumerate(chain.replicas):
        last = (micro_batches - 1) // replicas * replicas
        found.append(sum(first) + sum(first[s:]) + sum(longer(link, last) for link in links[:s]))
    return np.array(found, np.int64)


def _loads(
    cluster: Cluster, source: tuple[Device, ...], target: tuple[Device, ...], micro_batches: int
) -> dict[str, Counter[Link]]:
    """For each link resource the number of micro-batches that pass it in a step, by the link that they take."""
    period = lcm(len(source), len(target))
    # Micro-batches whose tensors use the same resources: devices of one node share its card, and inside a node each
    # pair has a link of its own.
    turns = np.arange(min(period, micro_batches))
    one, other = turns % len(source), turns % len(target)
    from_, to = (np.array([device.node for device in group], np.int64) for group in (source, target))
    outside = from_[one] * len(cluster.nodes) + to[other]
    inside = from_[one] == to[other]
    _, first, place = np.unique(
        np.where(inside, -1 - one * len(target) - other, outside), return_index=True, return_inverse=True
    )
    many = np.zeros(len(first), np.int64)
    np.add.at(many, place, -(-(micro_batches - turns) // period))
    loads: dict[str, Counter[Link]] = {}
    for m, count in sorted(zip(first.tolist(), many.tolist(), strict=True)):
        a, b = source[m % len(source)], target[m % len(target)]
        for resource in transfer(cluster, a, b, 0).resources:
            loads.setdefault(resource, Counter())[cluster.link(a, b)] += count
    return loads
