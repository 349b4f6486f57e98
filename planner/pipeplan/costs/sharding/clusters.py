"""Meshes on the devices of a cluster: all of them, of one kind, in equal nodes."""

from math import gcd, prod

from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.wording import counted
from pipeplan.costs.sharding.shapes import Mesh, fitting, mesh_on

MOST_AXES = 2
"""Axes of the meshes that are looked at where none is named."""


def shape_name(sizes: tuple[int, ...]) -> str:
    """Return ``'8 x 4'``."""
    return " x ".join(map(str, sizes))


def only_kind(cluster: Cluster) -> DeviceKind:
    """Return the kind of all devices.

    Raises
    ------
    InputError
        If there are several, or nodes are not equal.
    """
    kinds = sorted({device.kind.name for device in cluster.devices})
    if len(kinds) > 1:
        raise InputError(
            f"a mesh has devices of one kind, and {cluster.name!r} has {', '.join(kinds)}; give a cluster of one kind"
        )
    if len({(len(node.kinds), node.link) for node in cluster.nodes if node.kinds}) > 1:
        sizes = sorted(len(node.kinds) for node in cluster.nodes if node.kinds)
        raise InputError(
            f"a mesh lies on equal nodes, and those of {cluster.name!r} have {', '.join(map(str, sizes))} devices, or "
            "unlike links; give a cluster of equal nodes"
        )
    return cluster.kinds[kinds[0]]


def mesh_of(cluster: Cluster, sizes: tuple[int, ...]) -> Mesh:
    """Return a mesh of all devices of a cluster, with the link along each axis.

    Raises
    ------
    InputError
        If an axis has fewer than two devices, they are not as many as there are, or the mesh does not fit the nodes.
    """
    only_kind(cluster)
    count, team, name = len(cluster.devices), prod(sizes), shape_name(sizes)
    if not sizes or min(sizes) < 2:
        raise InputError(f"mesh {name or 'without axes'}: each axis has 2 devices or more; leave the others out")
    if team > count:
        raise InputError(
            f"mesh {name} has {team} devices, and {cluster.name!r} has {count}; make an axis smaller, as in "
            f"{_nearest(sizes, count)}, or name a larger cluster"
        )
    if team != count:
        raise InputError(
            f"mesh {name} has {team} devices, and {cluster.name!r} has {count}: a mesh has all of them, as in "
            f"{_nearest(sizes, count)}; or name a cluster of {team}"
        )
    node = next(node for node in cluster.nodes if node.kinds)
    within = len(node.kinds)
    try:
        return mesh_on(sizes, within, node.link, cluster.network or Link())
    except ValueError:
        fit = [shape_name(own) for own in fitting(count, within) if len(own) == len(sizes)]
        raise InputError(
            f"mesh {name} does not fit nodes of {counted(within, 'device')}: the last axes, from some axis on, must "
            f"make up a node or divide it evenly, as in {', '.join(fit[:4]) or shape_name((count,))}"
        ) from None


def meshes_of(cluster: Cluster, most_axes: int = MOST_AXES) -> tuple[Mesh, ...]:
    """Return the meshes of all devices of a cluster with at most so many axes, those with fewest axes first.

    Raises
    ------
    InputError
        If there are none.
    """
    only_kind(cluster)
    count, within = len(cluster.devices), max(len(node.kinds) for node in cluster.nodes)
    if count < 2:
        raise InputError(f"a mesh has 2 devices or more, and {cluster.name!r} has {count}")
    return tuple(mesh_of(cluster, own) for own in fitting(count, within) if len(own) <= most_axes)


def _nearest(sizes: tuple[int, ...], count: int) -> str:
    """A shape of ``count`` devices that keeps as much of the last axes as divides them."""
    left, found = count, list[int]()
    for size in reversed(sizes[1:]):
        common = gcd(left, size)
        if common > 1:
            found.insert(0, common)
            left //= common
    return shape_name((left, *found) if left > 1 or not found else tuple(found))
