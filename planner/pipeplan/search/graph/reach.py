"""`applies`: whether the graph formulation covers a whole space; `widths`: those of stages in it.

Most searches only look here: the formulation itself is imported where it is used.
"""

from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.job import Objective, Order
from pipeplan.core.model import Model
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.pricing import usable_memory
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import Mode as Width
from pipeplan.search.space.space import Space

MOST_WIDTHS = REGIMES.graph_modes.most
"""Most pairs of device kind and number of replicas in one problem."""


def applies(space: Space) -> bool:
    """Return True if the graph formulation covers the whole space.

    It covers the bottleneck objective, on devices that are all joined by the same link and whose replicas can be any
    like devices. The job must not constrain particular layers, and layers must not share weights. In-flight counts of a
    stage must depend on the stages behind it only. A plain chain without replicas is left to the search along the
    chain, which gives the same answer.
    """
    job = space.job
    if job.objective is not Objective.BOTTLENECK or common_link(space.cluster) is None or space.constraints.any:
        return False
    if space.model.ties or not space.families:  # the formulation has no copies of weights
        return False
    if job.order is Order.GIVEN and len(space.classes) > 1:
        return False
    choices = [widths(space, size) for size in space.sizes]
    if not all(0 < len(own) <= MOST_WIDTHS for own in choices):
        return False
    replicated = any(w.replicas > 1 for own in choices for w in own)
    if replicated and not placed_alike(space.cluster):
        return False
    limited = any(usable_memory(each.kind, job) != UNLIMITED for each in space.classes)
    if limited and any(each.two_lanes for each in space.families):  # the peaks of two lanes add up
        return False
    filled = job.batch // max(space.sizes) >= 2 * len(space.cluster.devices)
    if any(each.phases for each in space.families) and not filled:
        return False
    return not is_chain(space.model) or replicated


def is_chain(model: Model) -> bool:
    """Return True if each layer except the first reads the layer before it and nothing else."""
    names = model.names
    return all(layer.inputs == names[i - 1 : i] for i, layer in enumerate(model.layers) if i)


def common_link(cluster: Cluster) -> Link | None:
    """The link that joins any two devices, or None if links differ."""
    links = {node.link for node in cluster.nodes if len(node.kinds) > 1}
    if len(cluster.nodes) > 1 and cluster.network is not None:
        links.add(cluster.network)
    return links.pop() if len(links) == 1 else Link() if not links else None


def placed_alike(cluster: Cluster) -> bool:
    """Return True if all choices of devices for replicas are alike: one node, or nodes of one device each."""
    return len(cluster.nodes) == 1 or all(len(node.kinds) == 1 for node in cluster.nodes)


def widths(space: Space, size: int) -> list[Width]:
    """Every device class with every number of replicas that the job allows."""
    count = space.job.batch // size
    return [
        Width(c, r)
        for c, each in enumerate(space.classes)
        for r in range(1, min(len(each.devices), count) + 1)
        if not space.job.replicas or r in space.job.replicas
    ]
