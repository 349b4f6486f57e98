"""Copies of shared weights in the allocation problem.

The allocation problem prices layers independently. Shared weights count for the first of their layers, so that no copy
is needed if all these layers are on one stage: a lower bound for every plan. If no stage can hold the first two of
them, the second one's stage certainly has a copy:

::

    embedding  block.0  …  block.95  head        larger than any device, so head's stage has a copy of embedding's
    ╰───────────── static bytes ────────╯        matrix, and both stages sum its gradients

The first and the last stage end together (docs/bounds/allocation.md), so what they sum counts by itself (``joint``).

If no node has room for these layers and all between them, the two stages do not lie in one, and sum over the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from pipeplan.core.model import Tie
from pipeplan.costs.collectives import Collective, all_reduce
from pipeplan.costs.network import rings_over_nodes, shared
from pipeplan.search.nodes.layouts import Layout
from pipeplan.search.space.device_groups import DeviceClass
from pipeplan.search.space.mixed import MixedSpace
from pipeplan.search.space.space import Space
from pipeplan_formulations.allocation import ChainAllocation


def with_certain_copies(space: Space, problem: ChainAllocation, layout: Layout) -> ChainAllocation:
    """Return the problem of a layout with the costs of the copies that every plan has."""
    index = {name: i for i, name in enumerate(space.model.names)}
    for tie in space.model.ties:
        first, second = (index[name] for name in tie.layers[:2])
        if _always_apart(space, problem, first, second):
            over_nodes = _in_several_nodes(space, problem, layout, first, second)
            ends = problem.last if second == problem.layers - 1 else ()
            last = [width * problem.unit for _, width in ends]
            packed = layout.tile is None and not space.placing.free and not space.job.regular
            rings = _rings(space, last if packed else [], over_nodes)
            problem = _with_copy(space, problem, first, second, tie, last, rings)
    return problem


def _always_apart(space: Space, problem: ChainAllocation, first: int, second: int) -> bool:
    """Return True if the two layers are on different stages in every plan.

    That is so if no device can hold both and all layers between, or if they are the first and last layer and there are
    several stages.
    """
    depths, ends = space.job.depths, (first, second) == (0, problem.layers - 1)
    if ends and (min(depths, default=1) > 1 or len(problem.last) > 1):
        return True
    between = problem.resident[:, :, first : second + 1].sum(axis=-1)
    return bool((between > problem.limit[:, None]).all())


def _in_several_nodes(space: Space, problem: ChainAllocation, layout: Layout, first: int, second: int) -> bool:
    """Return True if the stages of two layers do not lie in one node in any plan.

    That is so if a node has too few devices. Besides, stages of a class follow each other through its nodes: if these
    two lie in one, the stages between them do too, and all their replicas have room there.
    """
    if layout.pooled or len(space.classes) > 1:
        return False
    replicas = np.array(problem.widths) * problem.unit
    if space.classes[0].per_node < 2 * replicas[0]:
        return True
    if space.placing.free or space.job.regular:
        return False
    resident = (problem.resident[0, :, first : second + 1] * replicas[:, None]).min(axis=0)
    return int(resident.sum(dtype=object)) > space.classes[0].per_node * int(problem.limit[0])


def _with_copy(
    space: Space,
    problem: ChainAllocation,
    first: int,
    second: int,
    tie: Tie,
    last: Sequence[int],
    rings: Callable[[int], list[Collective]],
) -> ChainAllocation:
    """Add a copy on the stage of ``second``, and the reduction of its gradients with the stage of ``first``.

    ``last``: replicas of the last stages if they are known, and ``second`` is on the last one. ``rings(replicas)``: the
    rings that the two may form.
    """
    prices, size = space.prices, tie.parameters
    shares = np.array([prices.kept.shares(width * problem.unit) for width in problem.widths])
    update, reduce, resident = problem.update.copy(), problem.reduce.copy(), problem.resident.copy()
    joint, at_ends = problem.joint.copy(), (first, second) == (0, problem.layers - 1)
    kept = prices.kept
    resident[:, :, second] += (
        kept.versions * size + kept.gradients_of(size) - (-kept.state_of(size) // shares) + tie.frozen
    )
    if not size:  # frozen weights are copied and not summed
        return replace(problem, resident=resident)
    whole = np.array(
        [prices.table(each.kind, space.job.batch // problem.micro_batches).update[first] for each in space.classes]
    )
    of_kind = np.array([max(prices.kept.parameters(each.kind)[first], 1) for each in space.classes])
    update[:, :, second] += -(-(whole * size // of_kind)[:, None] // shares)
    narrowest, of_second = problem.widths[0] * problem.unit, last[-1] if last else problem.widths[0] * problem.unit
    for w, width in enumerate(problem.widths):
        with_first, with_second = (
            min(ring.lower_bound(size) for ring in rings(width * problem.unit + other))
            for other in (narrowest, of_second)
        )
        base = problem.reduce_base[:, w]  # a stage without a reduction pays none
        if at_ends and not isinstance(space, MixedSpace):
            joint[:, w] += with_first
        else:
            reduce[:, w, second] += np.maximum(with_first - base, 0)
        reduce[:, w, first] = np.maximum(reduce[:, w, first], with_second - base)
    return replace(problem, update=update, reduce=reduce, resident=resident, joint=joint)


def _rings(space: Space, last: Sequence[int], over_nodes: bool) -> Callable[[int], list[Collective]]:
    """Return the function of a number of replicas that lists the rings which two stages may form; see `_with_copy`."""
    devices = space.classes[0]
    network = space.cluster.between(devices.kind, devices.kind)
    if over_nodes and network is not None:
        card = shared(network, _rings_on_a_card(devices, last))
        return lambda replicas: rings_over_nodes(replicas, card, devices.link)
    links = {node.link for node in space.cluster.nodes} | {space.cluster.network}
    return lambda replicas: [all_reduce(replicas, link) for link in links if link is not None]


def _rings_on_a_card(devices: DeviceClass, last: Sequence[int]) -> int:
    """Return the least number of rings over one card of the last stage, its ring with the first stage included.

    ``last``: replicas of the last stages, packed. Those between that lie in several nodes have rings over these cards;
    the first of them may be the first of all.
    """
    if not last or not devices.even:
        return 1
    # From the end nodes are full.
    edges = [0, *accumulate(reversed(last))]
    nodes = [range(a // devices.per_node, (b - 1) // devices.per_node + 1) for a, b in pairwise(edges)]
    others = [own for own in nodes[1:-1] if len(own) > 1]
    return 1 + max(sum(node in own for own in others) for node in nodes[0])
