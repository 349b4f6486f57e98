"""Ways from one layout of a tensor to another: the collectives, one after the other, by which the least is received."""

from fractions import Fraction
from functools import lru_cache, partial
from math import prod

from pipeplan.costs.meshes.redistributions import Layout, Redistributions
from pipeplan.costs.meshes.volumes import Algorithm, received


@lru_cache(maxsize=4096)
def way(source: Layout, target: Layout, sizes: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[Layout, ...] | None:
    """Return the layouts on the way, the target included; None if there is none.

    Parameters
    ----------
    source, target : Layout
    sizes : tuple of int
        Devices along each axis of the mesh.
    lengths : tuple of int
        Parts of each of the tensor's dimensions.
    """
    price = partial(received, prod(lengths), sizes, Algorithm.RING)
    return Redistributions(sizes, lengths, price, Fraction(0)).way(source, target)
