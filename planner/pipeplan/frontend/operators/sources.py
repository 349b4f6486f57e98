"""`Source` and `View`: what the tensors of a layer are views of."""

from dataclasses import dataclass
from math import prod

from pipeplan.core.operators import SAMPLE, TOKEN
from pipeplan.frontend.operators.factors import Axis, Factor, entire, opaque

WHOLE = "whole"
"""Loop of an axis that an operator reads in another order, or in part; nothing splits it, and no team `SAMPLE`."""
UNNAMED = "axis"
"""Name of an axis that nothing names."""
CHANNEL, FEATURE = "channel", "feature"
"""Loops over channels, axis 1 of images, and over features, the last axis of other tensors."""


@dataclass(frozen=True)
class Source:
    """An operator's output, an input of the layer, or a weight.

    Attributes
    ----------
    name : str
    loops : tuple of str
        Loop of each axis.
    sizes : tuple of int
    parts : tuple of int
        Number of parts into which each axis may be cut; 1 for those that are never split.
    weight : bool
    """

    name: str
    loops: tuple[str, ...]
    sizes: tuple[int, ...]
    parts: tuple[int, ...]
    weight: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the source itself."""
        return tuple((entire(number, size),) for number, size in enumerate(self.sizes))


@dataclass(frozen=True)
class View:
    """A tensor as a view of a source."""

    source: Source
    axes: tuple[Axis, ...]

    def viewed(self, axes: tuple[Axis, ...]) -> "View":
        """Return a view of it with these axes; ranges of samples, of tokens and of weights are not followed."""
        return View(
            self.source, tuple(axis if all(map(self._follows, axis)) else opaque(_length(axis)) for axis in axes)
        )

    def _follows(self, factor: Factor) -> bool:
        if factor.axis is None or factor.length == self.source.sizes[factor.axis]:
            return True
        return not (self.source.weight or fixed(self.source.loops[factor.axis]))


def _length(axis: Axis) -> int:
    return prod(factor.size for factor in axis)


def fixed(loop: str) -> bool:
    """Return whether a loop is over samples or tokens."""
    return loop.startswith((SAMPLE, TOKEN))
