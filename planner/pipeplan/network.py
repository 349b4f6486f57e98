"""What a tensor's way from one device to another costs, and which wires it keeps busy."""

from pipeplan.cluster import Cluster, Device
from pipeplan.pipeline import Transfer


def transfer(cluster: Cluster, source: Device, target: Device, size: int) -> Transfer:
    """``size`` bytes from ``source`` to ``target``.

    Inside a node every ordered pair of devices has its own wire. Between nodes a tensor passes the sending node's
    card outwards and the receiving node's card inwards; all devices of a node share its card. No bytes still take the
    latency: the receiver has to learn that it may go on.
    """
    if source.index == target.index:
        return Transfer()
    link = cluster.link(source, target)
    if source.node == target.node:
        resources: tuple[str, ...] = (f"d{source.index} to d{target.index}",)
    else:
        resources = (f"node {source.node} card out", f"node {target.node} card in")
    return Transfer(size, link.occupancy(size), link.latency, resources)
