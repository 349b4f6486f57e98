"""Folding of repeated layers into groups that a file writes once.

::

    - repeat: 96                                    h.0.attention
      layers:                                       h.0.mlp
        - {name: "h.{i}.attention", ...}     ⇔      h.1.attention
        - {name: "h.{i}.mlp", ...}                  ...
                                                    h.95.mlp

``{i}`` counts from ``first`` (default 0), in the names and in the inputs of the group.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeplan.core.model import Layer

LONGEST = 64
"""Largest number of layers of one group in the search for repetition."""
_INDEX = "{i}"
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Group:
    """``layers`` repeated ``count`` times, with ``{i}`` from ``first`` on."""

    layers: tuple[Layer, ...]
    count: int
    first: int

    def expand(self) -> list[Layer]:
        """Return every layer of every repetition."""
        return [put_index(layer, i) for i in range(self.first, self.first + self.count) for layer in self.layers]


def put_index(layer: Layer, i: int) -> Layer:
    """Replace every ``{i}`` in a layer by the number ``i``."""
    inputs = tuple(name.replace(_INDEX, str(i)) for name in layer.inputs)
    return replace(layer, name=layer.name.replace(_INDEX, str(i)), inputs=inputs)


def fold(layers: Sequence[Layer]) -> list[Layer | Group]:
    """Fold repetitions into groups, from the left: the group that saves most lines, the shorter of equals."""
    found: list[Layer | Group] = []
    at = 0
    while at < len(layers):
        best: Group | None = None
        for period in range(1, min(LONGEST, (len(layers) - at) // 2) + 1):
            group = _group(layers, at, period)
            if group is not None and (best is None or _saved(group) > _saved(best)):
                best = group
        found.append(layers[at] if best is None else best)
        at += 1 if best is None else len(best.layers) * best.count
    return found


def _saved(group: Group) -> int:
    return len(group.layers) * (group.count - 1)


def _group(layers: Sequence[Layer], at: int, period: int) -> Group | None:
    """Return the longest repetition of ``period`` layers from ``at`` on, or None."""
    first, second = layers[at], layers[at + period]
    if any(getattr(first, name) != getattr(second, name) for name in ("kind", "parameters", "frozen", "work")):
        return None
    for start in _indices(first.name, second.name):
        unit = tuple(_take_index(layer, start) for layer in layers[at : at + period])
        if any(_INDEX in text for layer in layers[at : at + period] for text in (layer.name, *layer.inputs)):
            continue
        count = 0
        while _is_turn(layers[at + count * period : at + (count + 1) * period], unit, start + count):
            count += 1
        if count > 1:
            return Group(unit, count, start)
    return None


def _is_turn(layers: Sequence[Layer], unit: tuple[Layer, ...], i: int) -> bool:
    return len(layers) == len(unit) and all(
        layer == put_index(pattern, i) for layer, pattern in zip(layers, unit, strict=True)
    )


def _indices(first: str, second: str) -> list[int]:
    """Return the numbers in ``first`` that are one higher in ``second``."""
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=False)
    return list(dict.fromkeys(int(a) for a, b in pairs if int(b) == int(a) + 1 and str(int(a)) == a))


def _take_index(layer: Layer, i: int) -> Layer:
    """Replace every number ``i`` in a layer by ``{i}``."""

    def hide(text: str) -> str:
        return _NUMBER.sub(lambda match: _INDEX if match[0] == str(i) else match[0], text)

    return replace(layer, name=hide(layer.name), inputs=tuple(map(hide, layer.inputs)))
