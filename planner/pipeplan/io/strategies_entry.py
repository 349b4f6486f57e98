"""Strategies of layers on meshes, in plan files: equal layers once.

::

    "strategies": [
      {
        "layers": ["block0", "block1"],
        "input": [1, null], "output": [1, null],                                    tokens along the first axis
        "operators": [{"operator": "widen", "loops": ["token", "out"], "held": [1, 2]}, …],
        "sums": [{"tensor": "norm", "placements": [1, "sum"]}],
        "copies": [{"tensor": "norm", "placements": [null, null], "readers": ["query", "key", "value"]}]
      }
    ]
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeplan.core.operators import TOKEN
from pipeplan.core.strategies import (
    BY_KEYS,
    PARTIAL,
    UNSPLIT,
    WHOLE,
    AttentionMethod,
    AxisStrategy,
    Copy,
    LayerStrategies,
    Placements,
    Signature,
)
from pipeplan.io.schema import Items, Strict

Entry = Annotated[int, Field(ge=0)] | None
"""The dimension that is split along an axis of the mesh; none is."""


class OperatorEntry(Strict):
    """An operator: the loop that each axis splits, whether weights without it are gathered, and what it makes.

    ``attention``: of attention on parts of the tokens, by which method.
    """

    operator: str
    loops: Items[str | None]
    gathered: Items[bool] = ()
    attention: Items[AttentionMethod | None] = ()
    held: Items[Entry]

    @model_validator(mode="after")
    def _alike(self) -> Self:
        rows = self.loops, self.held, self.gathered or self.loops, self.attention or self.loops
        if len(set(map(len, rows))) > 1:
            raise ValueError("loops, gathered, attention and held have an entry for each axis of the mesh")
        methods = zip(self.loops, self.attention, strict=bool(self.attention))
        if any(by and loop != TOKEN for loop, by in methods):
            raise ValueError(
                f"attention is by keys, ring or heads along axes that split the loop {TOKEN!r}; elsewhere null"
            )
        return self

    @property
    def signature(self) -> Signature:
        """The strategy, and the placements."""
        none = (None,) * len(self.loops)
        rows = zip(self.loops, self.gathered or none, self.attention or none, strict=True)
        strategy = tuple(AxisStrategy(loop or UNSPLIT, bool(gathers), _method(by)) for loop, gathers, by in rows)
        return Signature(strategy, _placements(self.held))


class SumEntry(Strict):
    """A tensor whose gradient several operators return, and the placements in which it is summed up."""

    tensor: str
    placements: Items[Entry | Literal["sum"]]


class CopyEntry(Strict):
    """A tensor in other placements than it is held in, for some operators that read it, and whether it is kept."""

    tensor: str
    placements: Items[Entry]
    readers: Items[str]
    kept: bool = False


class LayerStrategiesEntry(Strict):
    """Layers that run alike on their meshes; see `pipeplan.core.strategies.LayerStrategies`."""

    layers: Items[str]
    input: Items[Entry] = ()
    output: Items[Entry] = ()
    operators: Items[OperatorEntry] = ()
    sums: Items[SumEntry] = ()
    copies: Items[CopyEntry] = ()

    @property
    def strategies(self) -> LayerStrategies:
        """How each of them runs."""
        return LayerStrategies(
            {each.operator: each.signature for each in self.operators},
            {each.tensor: _placements(each.placements) for each in self.sums},
            _placements(self.input),
            _placements(self.output),
            {each.tensor: Copy(_placements(each.placements), tuple(each.readers), each.kept) for each in self.copies},
        )


def strategies_of(entries: Iterable[LayerStrategiesEntry]) -> tuple[tuple[str, LayerStrategies], ...]:
    """Return how each layer runs, by name."""
    return tuple((layer, entry.strategies) for entry in entries for layer in entry.layers)


def strategies_data(strategies: Iterable[tuple[str, LayerStrategies]]) -> list[dict[str, Any]]:
    """Return the plain data of entries."""
    groups: list[tuple[LayerStrategies, list[str]]] = []
    for layer, own in strategies:
        known = next((layers for other, layers in groups if other == own), None)
        if known is None:
            groups.append((own, [layer]))
        else:
            known.append(layer)
    return [{"layers": layers} | dict(_entry(own)) for own, layers in groups]


def _entry(own: LayerStrategies) -> Iterator[tuple[str, Any]]:
    for name, placements in (("input", own.input), ("output", own.output)):
        if placements:
            yield name, _entries(placements)
    yield "operators", [_operator(name, signature) for name, signature in own.operators.items()]
    if own.sums:
        yield "sums", [{"tensor": name, "placements": _entries(placements)} for name, placements in own.sums.items()]
    if own.copies:
        yield (
            "copies",
            [
                {"tensor": name, "placements": _entries(copy.placements), "readers": [*copy.readers]}
                | ({"kept": True} if copy.kept else {})
                for name, copy in own.copies.items()
            ],
        )


def _operator(name: str, signature: Signature) -> dict[str, Any]:
    found: dict[str, Any] = {"operator": name, "loops": [entry.loop or None for entry in signature.strategy]}
    if any(entry.gathers for entry in signature.strategy):
        found["gathered"] = [entry.gathers for entry in signature.strategy]
    if any(entry.by for entry in signature.strategy):
        found["attention"] = [(entry.by or BY_KEYS) if entry.loop == TOKEN else None for entry in signature.strategy]
    return found | {"held": _entries(signature.held)}


def _method(by: str | None) -> str:
    """The method of attention; by keys is the one that is not named."""
    return "" if by in (None, BY_KEYS) else by


def _entries(placements: Placements) -> list[int | str | None]:
    return [None if each == WHOLE else "sum" if each == PARTIAL else each for each in placements]


def _placements(entries: Sequence[int | str | None]) -> Placements:
    return tuple(entry if isinstance(entry, int) else WHOLE if entry is None else PARTIAL for entry in entries)
