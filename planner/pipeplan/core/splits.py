"""Splits: how the teams of a question run all layers, as meshes of one size, or as mixes of several sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from pipeplan.core.cluster import Link
from pipeplan.core.strategies import WHOLE, LayerStrategies, Placements

SEQUENCE, CONTEXT, LOSS = "sequence", "context", "loss"
"""What teams may split beside weights: tensors between layers, along tokens or otherwise; products of matrices and
attention, along tokens; the loss, along the classes of the logits."""


@dataclass(frozen=True)
class Split:
    """How teams of one size run all layers as meshes; equal layers run alike in all stages.

    Attributes
    ----------
    sizes : tuple of int
        Devices along each axis.
    placements : Placements
        Of what passes between layers, wherever it can have it; whole elsewhere.
    passes : tuple of bool
        For each layer whether its output has it.
    number : int
        Its place among the ways over teams of this size, of all meshes.
    links : tuple of (str, tuple of Link)
        For each kind of device those between neighbours along each axis.
    sharing : tuple of int
        Devices along each axis that send over one card at once where each sends every other one its part.
    strategies : mapping of (str, int) to tuple of LayerStrategies
        For each kind of device and micro-batch size at which the way is possible those of every layer. They follow from
        the rest.
    parallelism : tuple of str
        What is split beside weights: `SEQUENCE`, `CONTEXT`, `LOSS`.
    """

    sizes: tuple[int, ...]
    placements: Placements
    passes: tuple[bool, ...]
    number: int
    links: tuple[tuple[str, tuple[Link, ...]], ...] = ()
    sharing: tuple[int, ...] = ()
    strategies: Mapping[tuple[str, int], tuple[LayerStrategies, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    parallelism: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def team(self) -> int:
        """Devices of a team."""
        return prod(self.sizes)

    @property
    def teams(self) -> tuple[int, ...]:
        """The sizes of teams."""
        return (self.team,)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Devices along each axis of a mesh of several; of one axis none is named."""
        return self.sizes if len(self.sizes) > 1 else ()

    @property
    def sequence(self) -> tuple[bool, ...]:
        """For each layer whether its output is split; none is if there is no entry."""
        return self.passes if any(self.passes) else ()

    @property
    def parts(self) -> int:
        """Into how many parts devices split what passes between layers."""
        return prod(n for n, placement in zip(self.sizes, self.placements, strict=True) if placement != WHOLE)

    def at(self, team: int) -> "Split | None":
        """How teams of a size run layers; None if there are none of it."""
        return self if team == self.team else None


@dataclass(frozen=True, slots=True)
class Mix:
    """Teams of unlike sizes on one cluster, and how those of each size run layers.

    Attributes
    ----------
    splits : tuple of Split
        Of each size but 1, the largest first; all split the same tensors between layers, or none.
    nodes : tuple of tuple of (str, int)
        For each node the teams in it: the kind of their devices, and how many these are.
    tied : tuple of int
        For each set of layers that share weights (`pipeplan.core.shared_weights.merge_overlapping`) the size of the
        teams that have them.
    number : int
        Its place among the mixes that are searched.
    """

    splits: tuple[Split, ...]
    nodes: tuple[tuple[tuple[str, int], ...], ...]
    tied: tuple[int, ...] = ()
    number: int = 0

    @property
    def mesh(self) -> tuple[int, ...]:
        """Devices along each axis of a mesh of several; teams of unlike sizes have one axis."""
        return ()

    @property
    def teams(self) -> tuple[int, ...]:
        """The sizes of teams, the largest first."""
        return tuple(sorted({team for node in self.nodes for _, team in node}, reverse=True))

    @property
    def sequence(self) -> tuple[bool, ...]:
        """For each layer whether its output is split along tokens; none is if there is no entry."""
        return self.splits[0].sequence

    @property
    def parallelism(self) -> tuple[str, ...]:
        """What teams of some size split beside weights."""
        return tuple(dict.fromkeys(name for split in self.splits for name in split.parallelism))

    def at(self, team: int) -> Split | None:
        """How teams of a size run layers; single devices split nothing."""
        return next((split for split in self.splits if split.team == team), None)


Splitting = Split | Mix
"""How the teams of a question run layers: those of one size, or of several."""
