"""Names of captured layers, taken from their modules.

==========================  =============================================
``transformer.h.0.attn``    one module, with norms and the like around it
``transformer.wte..wpe``    modules from the first to the last
``transformer.h.0:softmax`` a part of one, by its first operation
``encoder.norm#2``          a module that is called more than once
==========================  =============================================
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import fx

from pipeplan.frontend.capture.graph.cuts import Call


def layer_names(
    root: Call, cuts: Sequence[int], units: Sequence[tuple[fx.Node, ...]], busy: Sequence[bool]
) -> list[str]:
    """Unique names of the layers.

    Parameters
    ----------
    cuts : sequence of int
        The first unit of each layer except the first.
    busy : sequence of bool
        True for units that read a matrix; the others give a name only to layers without a matrix.
    """
    borders = [0, *cuts, root.end]
    return list(_numbered([_name(root, a, b, units, busy) for a, b in pairwise(borders)]))


def _name(root: Call, first: int, end: int, units: Sequence[tuple[fx.Node, ...]], busy: Sequence[bool]) -> str:
    modules = _modules(root, first, end, busy)
    if modules:
        return _span(modules[0].path, modules[-1].path)
    part = _owner(root, first, end, busy)
    if part.path and any(busy[first:end]):
        return part.path
    operation = units[next((n for n in range(first, end) if busy[n]), first)][0]
    schema = getattr(operation.target, "_schema", None)
    name = operation.name if schema is None else schema.name.partition("::")[2]
    return f"{part.path}:{name}".lstrip(":")


def innermost(call: Call, first: int, end: int) -> Call:
    """The smallest call that holds all these units."""
    for inner in call.inside:
        if inner.first <= first and end <= inner.end:
            return innermost(inner, first, end)
    return call


def layer_kind(root: Call, first: int, end: int, busy: Sequence[bool]) -> str:
    """Class of the layer's module, or of the innermost module that contains the layer."""
    modules = _modules(root, first, end, busy)
    return modules[0].kind if len(modules) == 1 else _owner(root, first, end, busy).kind


def _modules(root: Call, first: int, end: int, busy: Sequence[bool]) -> list[Call]:
    """The largest modules in a layer that read a matrix; all of the largest if none does."""
    modules = list(_covered(root, first, end))
    return [m for m in modules if any(busy[m.first : m.end])] if any(busy[first:end]) else modules


def _owner(root: Call, first: int, end: int, busy: Sequence[bool]) -> Call:
    """The smallest call that contains all units of a layer that read a matrix; all units if none does."""
    reading = [number for number in range(first, end) if busy[number]] or [first, end - 1]
    return innermost(root, reading[0], reading[-1] + 1)


def _covered(call: Call, first: int, end: int) -> Iterator[Call]:
    """The largest calls within the layer, never the model itself."""
    for inner in call.inside:
        if first <= inner.first and inner.end <= end:
            yield inner
        elif inner.first < end and first < inner.end:
            yield from _covered(inner, first, end)


def _span(first: str, last: str) -> str:
    if first == last:
        return first
    ours, theirs = first.split("."), last.split(".")
    shared = 0
    while shared < min(len(ours), len(theirs)) - 1 and ours[shared] == theirs[shared]:
        shared += 1
    return f"{first}..{'.'.join(theirs[shared:])}"


def _numbered(names: Sequence[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    taken = set(names)
    for name in names:
        seen[name] += 1
        if seen[name] == 1:
            yield name
        else:
            numbered = f"{name}#{seen[name]}"
            while numbered in taken:
                numbered += "'"
            taken.add(numbered)
            yield numbered
