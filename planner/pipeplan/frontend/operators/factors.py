"""Axes of views in terms of the axes of the tensor that an operator made.

::

    made      [token, out = 12]                  out: one factor of 12
    view      [token, head = 4, part = 3]        head: the outermost factor of out, of 4; part: the inner factor of 3
    permuted  [head = 4, token, part = 3]

Equal contiguous shards of ``out``, 2 or 4 of them, are equal contiguous shards of ``head``; no shards of ``part`` are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Factor:
    """A factor of an axis: the index along it is that of the axis, divided by ``stride``, modulo ``size``.

    ``axis`` is the number of the axis, or None where it is no part of one (a slice, an expansion). An axis of samples
    keeps its factor if there is one sample only, and no other axis of length 1 has any.
    """

    axis: int | None
    stride: int
    size: int


Axis: TypeAlias = tuple[Factor, ...]
"""Factors of an axis of a view, outermost first."""


def opaque(length: int) -> Axis:
    """Return an axis that is no part of any."""
    return (Factor(None, 1, length),) if length > 1 else ()


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
                axis.append(Factor(factor.axis, factor.stride * inner, missing))
                left.insert(0, Factor(factor.axis, factor.stride, inner))
                missing = 1
            else:
                return tuple(map(opaque, shape))
        found.append(_joined(axis))
    return tuple(found)


def _joined(axis: Sequence[Factor]) -> Axis:
    """Return the factors with neighbours of one axis joined again."""
    found: list[Factor] = []
    for factor in axis:
        last = found[-1] if found else None
        if last is not None and last.axis == factor.axis and last.stride == factor.stride * factor.size:
            found[-1] = Factor(factor.axis, factor.stride, last.size * factor.size)
        else:
            found.append(factor)
    return tuple(found)
