"""Shapes of meshes: ordered factorisations of a team, and the links along their axes.

Devices of a team are numbered with the last axis fastest, node by node. 2 x 4 on two nodes of four::

    node 0    0,0  0,1  0,2  0,3        rings along the last axis stay in a node; along the first axis
    node 1    1,0  1,1  1,2  1,3        there are four, and all of them use the nodes' cards at once
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from pipeplan.core.cluster import Link
from pipeplan.costs.network import shared, slowest


class Mesh(NamedTuple):
    """Devices along each axis, and the link between neighbours along it.

    Attributes
    ----------
    sizes : tuple of int
    links : tuple of Link
    sharing : tuple of int
        Devices along each axis that send over a link at once where each sends every other one its part: those of a
        node, if the axis leaves it. Empty is one.
    """

    sizes: tuple[int, ...]
    links: tuple[Link, ...]
    sharing: tuple[int, ...] = ()

    @property
    def team(self) -> int:
        """Number of devices."""
        return prod(self.sizes)


def factorisations(team: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered factorisations of a number into factors above 1, the shortest ones first."""
    found = sorted(_factorisations(team), key=lambda sizes: (len(sizes), sizes))
    yield from found


def _factorisations(team: int) -> Iterator[tuple[int, ...]]:
    if team > 1:
        yield (team,)
    for first in range(2, team // 2 + 1):
        if team % first == 0:
            yield from ((first, *rest) for rest in _factorisations(team // first))


def fitting(team: int, within: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered factorisations that nodes with ``within`` devices of a team each divide evenly."""
    for sizes in factorisations(team):
        try:
            mesh_on(sizes, within, Link(), Link())
        except ValueError:
            continue
        yield sizes


def mesh_on(sizes: tuple[int, ...], within: int, inside: Link, across: Link) -> Mesh:
    """Return a mesh on nodes that have ``within`` of its devices each.

    A ring along an axis that leaves a node has a share of its card: as many rings as use it at once share it. With
    several devices in a node it is as slow as the slower of this and of the links inside.

    Parameters
    ----------
    sizes : tuple of int
    within : int
        Devices of the team in each node.
    inside, across : Link
        Between two devices of a node, and between two nodes.

    Raises
    ------
    ValueError
        If an axis does not divide the nodes evenly.
    """
    links, sharing = [], []
    for axis, size in enumerate(sizes):
        stride = prod(sizes[axis + 1 :])
        if within % (stride * size) == 0:
            links.append(inside)
            sharing.append(1)
        elif (stride * size) % within == 0 and (within % stride == 0 or stride % within == 0):
            several = max(within // stride, 1)
            links.append(slowest(*[inside] * (several > 1), shared(across, min(stride, within))))
            sharing.append(several)
        else:
            raise ValueError(f"axis {axis} of {sizes} does not divide nodes of {within}")
    return Mesh(sizes, tuple(links), tuple(sharing))
