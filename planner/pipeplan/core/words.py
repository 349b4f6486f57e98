"""Words: how the operators of a layer are split along each axis of a mesh of devices (see docs/meshes.md).

The layout of a tensor has an entry for each axis of the mesh: the dimension that is split along it, `WHOLE` or
`PARTIAL`. Axes that split one dimension are nested in the order of the mesh, the first one outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

WHOLE, PARTIAL = -1, -2
"""A tensor that is whole along an axis of the mesh, and one of which each device has a part of a sum."""
UNSPLIT = ""
"""In place of a loop: an operator that is not split along an axis."""

Layout = tuple[int, ...]


class Letter(NamedTuple):
    """The loop along which an axis splits an operator; ``gathers``: weights without that loop are gathered for it."""

    loop: str = UNSPLIT
    gathers: bool = False


Word = tuple[Letter, ...]


class Signature(NamedTuple):
    """The word of an operator, and the layout in which what it makes is held."""

    word: Word
    held: Layout


@dataclass(frozen=True)
class LayerWords:
    """How a layer runs on a mesh.

    Attributes
    ----------
    operators : mapping of str to Signature
        By name; others run whole on every device.
    sums : mapping of str to Layout
        Layouts in which the gradients of tensors that several operators read are summed up, by tensor; others are
        whole.
    input, output : Layout
        Of what the layer reads and makes, and of its gradient; of several inputs or outputs that of the only one with a
        gradient, others are whole. Empty is whole.
    """

    operators: Mapping[str, Signature] = field(default_factory=dict)
    sums: Mapping[str, Layout] = field(default_factory=dict)
    input: Layout = ()
    output: Layout = ()
