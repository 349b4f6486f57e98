"""`Source` and `View`: what the tensors of a layer are views of."""

from dataclasses import dataclass

from pipeplan.core.operators import SAMPLE, TOKEN
from pipeplan.frontend.operators.factors import Axis, Factor

WHOLE = "whole"
"""Loop of an axis that an operator reads in another order, or in part; nothing splits it, and no team `SAMPLE`."""
UNNAMED = "axis"
"""Name of an axis that nothing names."""


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
        return tuple((Factor(number, 1, size),) for number, size in enumerate(self.sizes))


@dataclass(frozen=True)
class View:
    """A tensor as a view of a source."""

    source: Source
    axes: tuple[Axis, ...]

    def leads(self, factor: Factor) -> bool:
        """Return whether a factor is the outermost one of an axis of the source."""
        return factor.axis is not None and factor.stride * factor.size == self.source.sizes[factor.axis]


def fixed(loop: str) -> bool:
    """Return whether a loop is over samples or tokens."""
    return loop.startswith((SAMPLE, TOKEN))
