"""Ways from one layout of a tensor to another: the collectives, one after the other, that take least time."""

from pipeplan.core.words import Layout
from pipeplan.costs.meshes.redistributions import times
from pipeplan.costs.meshes.shapes import Mesh


def way(source: Layout, target: Layout, size: int, mesh: Mesh, parts: tuple[int, ...]) -> tuple[Layout, ...] | None:
    """Return the layouts on the way, the target included; None if there is none.

    Parameters
    ----------
    source, target : Layout
    size : int
        Bytes of the whole tensor.
    mesh : Mesh
    parts : tuple of int
        Parts of each of the tensor's dimensions.
    """
    return times(size, mesh.sizes, mesh.links, parts, mesh.sharing).way(source, target)
