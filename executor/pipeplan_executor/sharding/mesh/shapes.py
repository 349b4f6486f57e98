"""Shapes of parts: of tensors that are views of what an operator makes, under the placements that this has."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from pipeplan.core.strategies import Placements
from pipeplan.costs.sharding.signatures import parts_of
from pipeplan.frontend.operators.factors import Axis, Factor
from pipeplan.frontend.operators.program import Program, Role
from pipeplan.frontend.operators.sources import View
from pipeplan_executor.sharding.mesh.moves import MeshAxes, Shape


def shapes_of(program: Program) -> dict[str, Shape]:
    """Return the whole shapes of a layer's inputs and weights, and of what its operators make."""
    groups = {each.name: each.groups for each in program.graph.operators}
    views = [view for view in program.given.values() if view is not None]
    views += [step.views[0] for step in program.steps if step.role is Role.OPERATOR and step.views[0] is not None]
    found: dict[str, Shape] = {}
    for source in (view.source for view in views):
        own = groups.get(source.name, {})
        rows = tuple(tuple(own.get(loop, ())) for loop in source.loops)
        found[source.name] = Shape(source.sizes, rows, parts_of(program.graph, source.name))
    for each in program.graph.operators:
        for weight in each.weights:
            if weight.name in found:
                rows = tuple(tuple(each.groups.get(loop, ())) for loop in weight.loops)
                found[weight.name] = replace(found[weight.name], groups=rows)
    return found


def own_lengths(shape: Shape, placements: Placements, axes: MeshAxes) -> tuple[int, ...]:
    """Return the lengths of the part that this process has of a tensor."""
    return axes.lengths(shape.lengths, placements)


def own_shape(view: View, shape: Shape, placements: Placements, axes: MeshAxes) -> tuple[int, ...]:
    """Return the lengths of the part of a view that this process has, if the source has placements."""
    counts = [axes.parts(placements, dimension) for dimension in range(len(shape.lengths))]
    divided = _divided(view.axes, shape, counts)
    return tuple(
        prod(axes.length(f.size, placements, f.axis or 0) if f in divided else f.size for f in axis)
        for axis in view.axes
    )


def _divided(axes: Sequence[Axis], shape: Shape, counts: Sequence[int]) -> set[Factor]:
    """Return the factors that are divided: outermost ones of a range, or of the groups in it.

    ::

        axis of 48, groups 1 1 1, in two parts    factors 3, 4, 4 of the whole axis    4, behind that of the groups
                                                  factors 4, 4 of a third of it        4, the outermost one
    """
    found = set()
    for factors in _ranges(axes).values():
        first = factors[0]
        assert first.axis is not None
        if counts[first.axis] == 1:
            continue
        left = _groups_within(first, shape)
        for factor in factors:
            if left == 1 or factor.stride == 1 or (factor.size > left and factor.size % left == 0):
                found.add(factor)
                break
            if left % factor.size:
                raise ValueError(f"an axis of {shape.lengths[first.axis]} is viewed across its groups")
            left //= factor.size
    return found


def _ranges(axes: Sequence[Axis]) -> dict[tuple[int, int, int], list[Factor]]:
    """Return the factors of each range of an axis of the source, outermost first."""
    found: dict[tuple[int, int, int], list[Factor]] = {}
    for factor in sorted((f for axis in axes for f in axis if f.axis is not None), key=lambda f: -f.stride):
        found.setdefault((factor.axis or 0, factor.first, factor.length), []).append(factor)
    return {key: own for key, own in found.items() if own[0].leads}


def _groups_within(factor: Factor, shape: Shape) -> int:
    """Return the number of groups in the range of a factor; 1 if the axis has none."""
    groups = shape.groups[factor.axis or 0]
    unit, first, count = shape.lengths[factor.axis or 0] // max(sum(groups), 1), 0, 0
    for each in groups:
        count += factor.first <= first < factor.first + factor.length
        first += each * unit
    return max(count, 1)
