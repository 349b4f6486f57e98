"""Axes of views in terms of the axes of the tensor that an operator made.

::

    made      [token, out = 12]                  out: one factor of 12
    view      [token, head = 4, part = 3]        head: the outermost factor of out, of 4; part: the inner factor of 3
    permuted  [head = 4, token, part = 3]

Equal contiguous shards of ``out``, 2 or 4 of them, are equal contiguous shards of ``head``; no shards of ``part`` are.
A slice of outermost indices is a range of the axis, with factors of its own::

    split     [token, 6], [token, 6]             two ranges of out, from 0 and from 6, each one factor of 6
    view      [token, head = 2, part = 3]        head: the outermost factor of its range
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias


@dataclass(frozen=True)
class Factor:
    """A factor of a range of an axis: the index along it is that in the range, divided by ``stride``, modulo ``size``.

    Attributes
    ----------
    axis : int or None
        Number of the axis; None where it is no part of one (an expansion, a slice of inner indices). An axis of samples
        keeps its factor if there is one sample only, and no other axis of length 1 has any.
    stride, size : int
    first, length : int
        The range.
    """

    axis: int | None
    stride: int
    size: int
    first: int
    length: int

    @property
    def leads(self) -> bool:
        """Whether it is the outermost factor of its range."""
        return self.axis is not None and self.stride * self.size == self.length


Axis: TypeAlias = tuple[Factor, ...]
"""Factors of an axis of a view, outermost first."""


def entire(axis: int | None, length: int) -> Factor:
    """Return the only factor of an axis as it is made."""
    return Factor(axis, 1, length, 0, length)


def opaque(length: int) -> Axis:
    """Return an axis that is no part of any."""
    return (entire(None, length),) if length > 1 else ()


def regrouped(axes: Sequence[Axis], shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return the axes of the same tensor as ``shape``; opaque ones where factors would be divided unevenly."""
    left = [factor for axis in axes for factor in axis]
    found: list[Axis] = []
    for length in shape:
        axis: list[Factor] = []
        missing = length
        while missing > 1 or (length == 1 and not axis and left and left[0].size == 1):
            if not left:
                return tuple(map(opaque, shape))
            factor = left.pop(0)
            if missing % factor.size == 0:
                axis.append(factor)
                missing //= factor.size
            elif factor.size % missing == 0:
                inner = factor.size // missing
                axis.append(replace(factor, stride=factor.stride * inner, size=missing))
                left.insert(0, replace(factor, size=inner))
                missing = 1
            else:
                return tuple(map(opaque, shape))
        found.append(_joined(axis))
    return tuple(found)


def sliced(axes: Sequence[Axis], place: int, first: int, end: int) -> tuple[Axis, ...]:
    """Return the axes of the part from ``first`` to ``end`` along one of them.

    If that is a range of outermost indices of an axis, all factors of the axis are those of the range. Else the axis is
    opaque.
    """
    outer, *rest = axes[place] or opaque(2)
    inner = prod(factor.size for factor in rest)
    if (first, end) == (0, outer.size * inner):
        return tuple(axes)
    if not outer.leads or first % inner or end % inner:
        return (*axes[:place], opaque(end - first), *axes[place + 1 :])
    from_, size = first // inner, (end - first) // inner
    start, length = outer.first + from_ * outer.stride, size * outer.stride

    def narrowed(factor: Factor) -> Factor:
        if (factor.axis, factor.first, factor.length) != (outer.axis, outer.first, outer.length):
            return factor
        own = size if factor == outer else factor.size
        return replace(factor, size=own, first=start, length=length)

    found = [tuple(map(narrowed, axis)) for axis in axes]
    if size == 1:
        found[place] = found[place][1:]
    return tuple(found)


def _joined(axis: Sequence[Factor]) -> Axis:
    """Return the factors with neighbours of one axis joined again."""
    found: list[Factor] = []
    for factor in axis:
        last = found[-1] if found else None
        if last == replace(factor, stride=factor.stride * factor.size, size=last.size if last else 1):
            found[-1] = replace(factor, size=last.size * factor.size)
        else:
            found.append(factor)
    return tuple(found)
