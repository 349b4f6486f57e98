"""`Alignment`: the axes of an operation's tensors, followed to those of the operators that made them.

An axis of the operation may be several of a source in one, like samples and tokens in a matrix product. It is then as
many loops: its pieces. Only the outermost one can be split, since shards of an inner one are not contiguous; or that
within samples, since torch's DTensor follows heads through products of all samples' heads at once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import gcd

from torch import Tensor

from pipeplan.core.operators import TOKEN
from pipeplan.frontend.operators.factors import Axis, Factor, entire, regrouped
from pipeplan.frontend.operators.groups import Reading
from pipeplan.frontend.operators.rules import Rule
from pipeplan.frontend.operators.sources import SAMPLE, UNNAMED, WHOLE, Source, View, fixed

Piece = tuple[int, int]
"""Number of an axis of the operation, and of its piece, outermost first."""


class Alignment:
    """Loops of an operator.

    Parameters
    ----------
    rule : Rule
    views : sequence of View or None
        The tensors that the rule reads; None for constants.
    made : Tensor
    samples : int

    Attributes
    ----------
    makes, sizes : tuple
        Loop and length of each axis of the output.
    axes : tuple of Axis
        The axes of the tensor that is made, as those of the output.
    """

    def __init__(self, rule: Rule, views: Sequence[View | None], made: Tensor, samples: int) -> None:
        self._rule, self._samples = rule, samples
        self._lengths: dict[int, int] = {}
        for tensor, axes in (*rule.reads, (made, rule.makes)):
            for axis, length in zip(axes, tensor.shape, strict=True):
                if axis is not None:
                    self._lengths.setdefault(axis, length)
        self._reads = [
            (view, {a: view.axes[n] for n, a in enumerate(axes) if a is not None and self._lengths[a] == t.shape[n]})
            for (t, axes), view in zip(rule.reads, views, strict=True)
            if view is not None
        ]
        self._pieces = {axis: self._divided(axis, length) for axis, length in self._lengths.items()}
        self._fine: list[tuple[View, dict[Piece, Axis]]] = [
            (
                view,
                {
                    (axis, p): found
                    for axis, factors in axes.items()
                    for p, found in enumerate(regrouped((factors,), self._pieces[axis]))
                },
            )
            for view, axes in self._reads
        ]
        self._names = self._named()
        self.makes = tuple(self._names[piece] for piece in self._made())
        self.sizes = tuple(self._pieces[axis][p] for axis, p in self._made())
        number = {piece: n for n, piece in enumerate(self._made())}
        self.axes: tuple[Axis, ...] = tuple(
            () if axis is None else tuple(entire(number[axis, p], size) for p, size in enumerate(self._pieces[axis]))
            for axis in rule.makes
        )

    def _divided(self, axis: int, length: int) -> tuple[int, ...]:
        """Return the lengths of an axis's pieces: those of the tensor that has most, of a weight if no other has it."""
        found = [(not view.source.weight, len(axes[axis]), axes[axis]) for view, axes in self._reads if axis in axes]
        if found:
            return tuple(factor.size for factor in max(found, key=lambda each: each[:2])[2])
        first = bool(self._rule.makes) and axis == self._rule.makes[0] and len(self._rule.makes) > 1
        return (length,) if length > 1 or (first and length == self._samples) else ()

    def _made(self) -> list[Piece]:
        return [(axis, p) for axis in self._rule.makes if axis is not None for p in range(len(self._pieces[axis]))]

    def _named(self) -> dict[Piece, str]:
        """Name each piece: by its source if it is of samples or tokens, by the rule, or by its source."""
        found: dict[Piece, str] = {}
        taken: Counter[str] = Counter()
        for axis, sizes in self._pieces.items():
            for p in range(len(sizes)):
                labels = list(self._labels((axis, p)))
                own = self._rule.names.get(axis)
                name = next(filter(fixed, labels), None)
                if name is None and own is not None:
                    name = own if p == 0 else f"{own} inner"
                if name is None:
                    first = self._rule.makes[:1] == (axis,) and p == 0 and sizes[0] == self._samples
                    name = labels[0] if labels else SAMPLE if first and len(self._rule.makes) > 1 else UNNAMED
                taken[name] += 1
                found[axis, p] = name if taken[name] == 1 else f"{name} {taken[name]}"
        return found

    def _labels(self, piece: Piece) -> Iterator[str]:
        for view, axes in self._fine:
            for factor in axes.get(piece, ())[:1]:
                if factor.axis is not None and (loop := view.source.loops[factor.axis]) != WHOLE:
                    yield loop if factor.leads or loop.endswith(" inner") else f"{loop} inner"

    def _read(self) -> Iterator[tuple[Source, dict[int, tuple[Piece, Factor]]]]:
        """Yield each source, with the pieces that its axes are, and the factor of each: the outermost of its range."""
        for view, axes in self._fine:
            yield (
                view.source,
                {
                    factor.axis: (piece, factor)
                    for piece, factors in axes.items()
                    for factor in factors[:1]
                    if factor.axis is not None and factor.leads
                },
            )

    def rows(self) -> Iterator[tuple[Source, tuple[str, ...]]]:
        """Yield each source that is read, with the loop of each of its axes."""
        for source, found in self._read():
            yield source, tuple(self._names[found[n][0]] if n in found else WHOLE for n in range(len(source.sizes)))

    def readings(self) -> Iterator[tuple[Source, Reading]]:
        """Yield each source that is read, with the range of each axis that is a loop."""
        for source, found in self._read():
            for axis, (piece, factor) in found.items():
                ranged = factor.first, factor.length, factor.size
                yield source, Reading(source.name, axis, self._names[piece], *ranged)

    def loops(self) -> Mapping[str, int]:
        """Return the loops that a team may split, and their parts."""
        parts: dict[str, int] = {}
        for source, found in self._read():
            for axis, ((own, p), factor) in found.items():
                name = self._names[own, p]
                outer = all(self._names[own, before].startswith(SAMPLE) for before in range(p))
                if not outer or own in self._rule.whole or fixed(name) or source.parts[axis] == 1:
                    continue
                here = gcd(factor.size, source.parts[axis], self._pieces[own][p])
                parts[name] = gcd(parts.get(name, 0), here)
        if self._by_tokens():
            parts[TOKEN] = self._lengths[self._rule.makes[1] or 0]
        return {name: count for name, count in parts.items() if count > 1}

    def _by_tokens(self) -> bool:
        """Return whether tokens are all of axis 1 of what is made, and the operation may run on a part of them."""
        axis = self._rule.makes[1] if len(self._rule.makes) > 1 else None
        if axis is None or not self._rule.tokens or axis in self._rule.whole:
            return False
        alone = len(self._pieces[axis]) == 1 and self._names[axis, 0] == TOKEN
        return alone and all(_has_tokens(view, axes[axis]) for view, axes in self._reads if axis in axes)


def _has_tokens(view: View, axis: Axis) -> bool:
    """Return whether an axis of a view is all tokens of its source, or an axis that no input determines (positions)."""
    source = view.source
    if source.weight or len(axis) != 1 or axis[0].axis is None:
        return False
    here = axis[0].axis
    tokens = source.loops[here] == TOKEN and here == source.loops.count(SAMPLE)
    named = tokens or source.loops[here] == UNNAMED
    return named and axis[0].size == source.sizes[here]
