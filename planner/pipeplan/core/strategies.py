"""Strategies: how the operators of a layer are split along each axis of a mesh of devices (see docs/meshes.md).

A tensor has placements, one for each axis of the mesh: the dimension that is split along it, `WHOLE` or `PARTIAL`. Axes
that split one dimension are nested in the order of the mesh, the first one outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

WHOLE, PARTIAL = -1, -2
"""A tensor that is whole along an axis of the mesh, and one of which each device has a part of a sum."""
UNSPLIT = ""
"""In place of a loop: an operator that is not split along an axis."""

Placements = tuple[int, ...]

AttentionMethod = Literal["keys", "ring", "heads"]
BY_KEYS, BY_RING, BY_HEADS = "keys", "ring", "heads"
"""How attention on parts of the tokens gets the keys of all: gathered, block by block, or of some heads in exchange for
its tokens of the others."""

NAMED_STRATEGIES = {"2d": "wo", "2.5d": "rwo", "3d": "wio"}
"""By name how products of matrices are split along the axes of a mesh: by rows (r), by rows with weights that are
gathered (w), by outputs (o), by inputs (i). Of 3-D products behind each other i and o are swapped in every second."""


class AxisStrategy(NamedTuple):
    """How an axis splits an operator: the entry of a strategy for it.

    Attributes
    ----------
    loop : str
    gathers : bool
        Whether weights without that loop are gathered for it.
    by : str
        Of attention along tokens `BY_RING` or `BY_HEADS`; empty is by keys.
    """

    loop: str = UNSPLIT
    gathers: bool = False
    by: str = ""


Strategy = tuple[AxisStrategy, ...]


def splits(strategy: Strategy) -> bool:
    """Return whether a strategy splits its operator."""
    return any(entry.loop != UNSPLIT for entry in strategy)


class Signature(NamedTuple):
    """The strategy of an operator, and the placements in which what it makes is held."""

    strategy: Strategy
    held: Placements


class Copy(NamedTuple):
    """A tensor in other placements than it is held in, for operators that read it.

    It is made before the first of them runs, and dropped behind the last one; once more in the backward if one of them
    moves again there what it reads. One that is ``kept`` stays for the backward.
    """

    placements: Placements
    readers: tuple[str, ...]
    kept: bool = False


@dataclass(frozen=True)
class LayerStrategies:
    """How a layer runs on a mesh.

    Attributes
    ----------
    operators : mapping of str to Signature
        By name; others run whole on every device.
    sums : mapping of str to Placements
        Placements in which gradients that come from several sides are summed up, by tensor: from the operators that
        read it, and of an output from behind the layer. Others are whole; those of outputs have the placements of
        these.
    input, output : Placements
        Of what the layer reads and makes, and of its gradient; of several inputs or outputs that of the only one with a
        gradient, others are whole. Empty is whole.
    copies : mapping of str to Copy
        By tensor, those from which some of its readers get it.
    """

    operators: Mapping[str, Signature] = field(default_factory=dict)
    sums: Mapping[str, Placements] = field(default_factory=dict)
    input: Placements = ()
    output: Placements = ()
    copies: Mapping[str, Copy] = field(default_factory=dict)

    @property
    def splits_any(self) -> bool:
        """Whether any operator is split."""
        return any(splits(strategy) for strategy, _ in self.operators.values())

    def __hash__(self) -> int:
        rows = self.operators, self.sums, self.copies
        return hash((*(tuple(row.items()) for row in rows), self.input, self.output))
