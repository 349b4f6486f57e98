"""Operators and lengths that a team or a mesh cannot split, and what that costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeplan.core.errors import InputError
from pipeplan.core.operators import SAMPLE
from pipeplan.core.units import format_bytes, format_time
from pipeplan.core.wording import counted, some

if TYPE_CHECKING:
    from pipeplan.costs.sharding.joined import Own

SMALL = 1000
"""Operators with a smaller part of the time than one in so many are named by kind only."""


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

    def as_json(self) -> dict[str, object]:
        """Return plain data; times in seconds."""
        return {
            "kind": self.kind,
            "operators": list(self.names),
            "time_s": self.time / 1e9,
            "lost_s": self.lost / 1e9,
            "parameter_bytes": self.parameters,
        }


def unsplit(of: "Mapping[str, Own]", devices: int) -> tuple[Unsplit, ...]:
    """Return the operators without a loop, by kind, those that cost the most first; ``of``: all operators by name."""
    by_kind: dict[str, list[str]] = {}
    for name, own in of.items():
        if not own.operator.loops:
            by_kind.setdefault(own.operator.kind, []).append(name)
    found = []
    for kind, names in by_kind.items():
        time = sum(_passes(of[name]) for name in names)
        parameters = sum(weight.size for name in names for weight in of[name].operator.weights)
        if time or parameters:
            found.append(Unsplit(kind, tuple(names), time, time - time // devices, parameters))
    return tuple(sorted(found, key=lambda each: (-each.lost, -each.parameters, each.kind)))


def _passes(own: "Own") -> int:
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

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "axis": self.axis,
            "loop": self.loop,
            "parts": self.parts,
            "operators": list(self.names),
            "nearest": self.nearest,
        }


def undivided(of: "Mapping[str, Own]", sizes: Sequence[int]) -> tuple[Undivided, ...]:
    """Return the lengths that axes do not divide: of operators with weights, and of operators that multiply."""
    return tuple(
        Undivided(axis, loop, parts, names, nearest(parts, size))
        for axis, size in enumerate(sizes)
        for (loop, parts), names in _lengths(of).items()
        if parts % size
    )


def require_divided(of: "Mapping[str, Own]", sizes: Sequence[int]) -> None:
    """Refuse axes that divide no length.

    Raises
    ------
    InputError
    """
    for axis, size in enumerate(sizes):
        why = divides_nothing(of, size)
        if why:
            raise InputError(f"axis {axis} of the mesh has {counted(size, 'device')}, {why}")


def divides_nothing(of: "Mapping[str, Own]", size: int) -> str:
    """Return in words that a number of devices divides no length, and which do; empty if it divides one."""
    lengths = _lengths(of)
    if not lengths or any(parts % size == 0 for _, parts in lengths):
        return ""
    every = [_length(loop, parts, names) for (loop, parts), names in lengths.items()]
    return (
        f"which divide no length of the model: {some(every, 5)}; the sizes nearest to it that divide most of them are "
        f"{' and '.join(map(str, _best(lengths, size)))}"
    )


def notes(operators: Sequence[Unsplit], lengths: Sequence[Undivided], sizes: Sequence[int], time: int) -> Iterator[str]:
    """Yield in words what is whole on every device.

    Parameters
    ----------
    operators : sequence of Unsplit
    lengths : sequence of Undivided
    sizes : sequence of int
        Devices along each axis.
    time : int
        Nanoseconds of which the operators take a part.
    """
    shown = [each for each in operators if each.parameters or SMALL * each.lost >= time]
    for each in shown:
        yield (
            f"whole on every device: {counted(len(each.names), each.kind + ' operator')} ({some(each.names)}), "
            f"{format_time(each.time)} of the {format_time(time)} and {format_bytes(each.parameters)} of weights; an "
            f"even split would save {format_time(each.lost)}"
        )
    left = [each for each in operators if each not in shown]
    if left:
        kinds = some([each.kind for each in left], 8)
        yield (
            f"whole on every device too, {format_time(sum(each.lost for each in left))} more than an even split: "
            f"{counted(sum(len(each.names) for each in left), 'operator')} ({kinds})"
        )
    for axis, size in enumerate(sizes):
        every = [each for each in lengths if each.axis == axis]
        if every:
            who = f"axis {axis} ({counted(size, 'device')})" if len(sizes) > 1 else f"a team of {size}"
            rows = [f"{_length(each.loop, each.parts, each.names)} ({each.nearest} does)" for each in every]
            yield f"{who} leaves whole what it does not divide: {some(rows, 5)}"


def _lengths(of: "Mapping[str, Own]") -> Mapping[tuple[str, int], tuple[str, ...]]:
    """The operators by loop and number of its parts, each once for all layers."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for own in of.values():
        if own.operator.weights or own.operator.forward_flops:
            for loop, parts in own.operator.loops.items():
                found.setdefault((loop, parts), {})[own.operator.name] = None
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
