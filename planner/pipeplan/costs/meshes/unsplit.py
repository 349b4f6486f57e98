"""Operators and lengths that a mesh cannot split, and what that costs."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pipeplan.core.errors import InputError
from pipeplan.core.operators import SAMPLE, Operator
from pipeplan.core.wording import counted, some
from pipeplan.costs.meshes.joined import JoinedLayers
from pipeplan.costs.meshes.shapes import Mesh


class Unsplit(NamedTuple):
    """Operators of one kind without a loop: each device runs the whole of them.

    Attributes
    ----------
    kind : str
    names : tuple of str
    time : int
        Nanoseconds of forward and backward.
    lost : int
        Nanoseconds of these that an even split over all devices would save.
    parameters : int
        Bytes of their weights, whole on every device.
    """

    kind: str
    names: tuple[str, ...]
    time: int
    lost: int
    parameters: int


def unsplit(model: JoinedLayers, devices: int) -> tuple[Unsplit, ...]:
    """Return the operators without a loop, by kind, those that cost the most first."""
    by_kind: dict[str, list[Operator]] = {}
    for each in model.graph.operators:
        if not each.loops:
            by_kind.setdefault(each.kind, []).append(each)
    found = []
    for kind, own in by_kind.items():
        time = sum(_passes(model, each) for each in own)
        parameters = sum(weight.size for each in own for weight in each.weights)
        if time or parameters:
            names = tuple(each.name for each in own)
            found.append(Unsplit(kind, names, time, time - time // devices, parameters))
    return tuple(sorted(found, key=lambda each: (-each.lost, -each.parameters, each.kind)))


def _passes(model: JoinedLayers, operator: Operator) -> int:
    own = model.of[operator.name]
    forward, backward, *_ = own.rooflines.passes(own.operator, {})
    return forward + backward


class Undivided(NamedTuple):
    """A length, or a number of heads, that an axis of the mesh does not divide.

    Attributes
    ----------
    axis : int
    loop : str
    parts : int
    names : tuple of str
        The operators, as their layers call them.
    nearest : int
        The size nearest to the axis' that divides the length.
    """

    axis: int
    loop: str
    parts: int
    names: tuple[str, ...]
    nearest: int


def undivided(model: JoinedLayers, mesh: Mesh) -> tuple[Undivided, ...]:
    """Return the lengths that axes do not divide: of operators with weights, and of operators that multiply.

    Raises
    ------
    InputError
        If an axis divides no length of any of them.
    """
    lengths = _lengths(model)
    found = []
    for axis, size in enumerate(mesh.sizes):
        wrong = [(loop, parts, names) for (loop, parts), names in lengths.items() if parts % size]
        if lengths and len(wrong) == len(lengths):
            raise InputError(
                f"axis {axis} of the mesh has {counted(size, 'device')}, which divide no length of the model: "
                f"{some([_length(loop, parts, names) for loop, parts, names in wrong], 5)}; the sizes nearest to it "
                f"that divide most of them are {' and '.join(map(str, _best(lengths, size)))}"
            )
        found += [Undivided(axis, loop, parts, names, nearest(parts, size)) for loop, parts, names in wrong]
    return tuple(found)


def _lengths(model: JoinedLayers) -> Mapping[tuple[str, int], tuple[str, ...]]:
    """The operators by loop and number of its parts, each once for all layers."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for each in model.graph.operators:
        if each.weights or each.forward_flops:
            for loop, parts in each.loops.items():
                found.setdefault((loop, parts), {})[model.of[each.name].operator.name] = None
    return {key: tuple(names) for key, names in found.items()}


def _length(loop: str, parts: int, names: tuple[str, ...]) -> str:
    return f"{parts} samples" if loop == SAMPLE else f"{parts} along {loop!r} of {some(names, 2)}"


def nearest(parts: int, size: int) -> int:
    """Return the divisor of ``parts`` nearest to ``size``, the larger of two."""
    return min((n for n in range(1, parts + 1) if parts % n == 0), key=lambda n: (abs(n - size), -n))


def _best(lengths: Mapping[tuple[str, int], tuple[str, ...]], size: int) -> Iterator[int]:
    """Yield the nearest smaller and larger sizes that divide most of the lengths."""
    for row in (range(2, size), range(size + 1, 2 * size + 1)):
        counts = {n: sum(parts % n == 0 for _, parts in lengths) for n in row}
        if counts and max(counts.values()):
            yield min(counts, key=lambda n: (-counts[n], abs(n - size)))
