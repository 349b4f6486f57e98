"""Ways from one layout of a tensor to another: the collectives, one after the other, that take least time."""

from pipeplan.core.cluster import Link
from pipeplan.core.words import Layout
from pipeplan.costs.meshes.redistributions import times


def way(
    source: Layout, target: Layout, size: int, sizes: tuple[int, ...], links: tuple[Link, ...], parts: tuple[int, ...]
) -> tuple[Layout, ...] | None:
    """Return the layouts on the way, the target included; None if there is none.

    Parameters
    ----------
    source, target : Layout
    size : int
        Bytes of the whole tensor.
    sizes : tuple of int
        Devices along each axis of the mesh.
    links : tuple of Link
        Between neighbours along each axis.
    parts : tuple of int
        Parts of each of the tensor's dimensions.
    """
    return times(size, sizes, links, parts).way(source, target)
