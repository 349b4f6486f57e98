"""`Alignment`: the axes of an operation's tensors, followed to those of the operators that made them.

An axis of the operation may be several of a source in one, like samples and tokens in a matrix product. It is then as
many loops: its pieces. Only the outermost one can be split, since shards of an inner one are not contiguous; or that
within samples, as heads in products of all samples' heads at once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import gcd

from torch import Tensor

from pipeplan.core.operators import SAMPLE, TOKEN
from pipeplan.frontend.operators.factors import Axis, Factor, entire, regrouped
from pipeplan.frontend.operators.groups import Reading
from pipeplan.frontend.operators.program import Pieces
from pipeplan.frontend.operators.rules import Rule
from pipeplan.frontend.operators.sources import UNNAMED, WHOLE, Source, View, fixed

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
    tables : bool
        Whether weights with an axis of tokens, like tables of positions, are read in parts.

    Attributes
    ----------
    makes, sizes : tuple
        Loop and length of each axis of the output.
    axes : tuple of Axis
        The axes of the tensor that is made, as those of the output.
    tokens : int
        Number of tokens if the operation may run on a part of them; else 0.
    """

    def __init__(
        self, rule: Rule, views: Sequence[View | None], made: Tensor, samples: int, tables: bool = False
    ) -> None:
        self._rule, self._samples, self._tables = rule, samples, tables
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
        self._keys = [view for view in views[1:3] if view is not None and rule.keys is not None]
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
        self.tokens = self._token_parts()
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

    def pieces(self, tensor: Tensor, axes: Sequence[int | None]) -> tuple[Pieces, ...]:
        """Return the pieces of each axis of a tensor that is read, or made; none of one that broadcasts."""
        return tuple(
            ()
            if axis is None or self._lengths[axis] != length
            else tuple((self._names[axis, p], size) for p, size in enumerate(self._pieces[axis]))
            for axis, length in zip(axes, tensor.shape, strict=True)
        )

    def rows(self) -> Iterator[tuple[Source, tuple[str, ...]]]:
        """Yield each source that is read, with the loop of each of its axes. Keys have tokens as queries have.

        Samples that are read together, like those of a softmax over them, are no loop.
        """
        together = () if self._rule.sums_samples else self._rule.whole
        names_read = {
            piece: WHOLE if piece[0] in together and name.startswith(SAMPLE) else name
            for piece, name in self._names.items()
        }
        for (view, _), (source, found) in zip(self._fine, self._read(), strict=True):
            names = dict(names_read)
            if self.tokens and any(view is each for each in self._keys):
                names |= {(axis, p): TOKEN for axis, p in names if axis == self._rule.keys}
            yield source, tuple(names[found[n][0]] if n in found else WHOLE for n in range(len(source.sizes)))

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
        if self.tokens:
            parts[TOKEN] = self.tokens
        return {name: count for name, count in parts.items() if count > 1}

    def _token_parts(self) -> int:
        """Return the number of tokens if the operation may run on a part of them; 0 if not.

        They are all of an axis of what is made, or where the rule of a product or of attention has them.
        """
        rule = self._rule
        if rule.by_plan is not None:
            return self._parts_by_plan(rule.by_plan, rule.keys)
        for axis in rule.makes if rule.tokens else ():
            if axis is None or axis in rule.whole or [self._names[axis, p] for p in self._places(axis)] != [TOKEN]:
                continue
            inside = axis != rule.makes[1]  # behind heads: there all other axes of tokens must be told from it
            if inside and any(name.startswith(f"{TOKEN} ") for name in self._names.values()):
                return 0
            every = all(
                _has_tokens(view, axes[axis], inside) or (self._tables and view.source.weight)
                for view, axes in self._reads
                if axis in axes
            )
            return self._lengths[axis] if every else 0
        return 0

    def _places(self, axis: int) -> range:
        return range(len(self._pieces[axis]))

    def _parts_by_plan(self, axis: int, keys: int | None) -> int:
        """Return the number of tokens of a product, behind samples in its axis; or of attention, alone in its axis."""
        names = [self._names[axis, p] for p in self._places(axis)]
        samples = 1 if keys is None else 0
        if names[samples:] != [TOKEN] or not all(name.startswith(SAMPLE) for name in names[:samples]):
            return 0
        first = next(((view, axes[axis]) for view, axes in self._reads if axis in axes), None)
        if first is None or len(first[1]) != samples + 1 or not _has_tokens(first[0], first[1][samples:], inside=True):
            return 0
        if keys is not None:
            reads = [(view, axes) for view, axes in self._reads if keys in axes]  # queries may be the same tensor
            own = [(view, axes[keys]) for view, axes in reads if any(view is each for each in self._keys)]
            alike = len(own) == 2 and self._lengths[keys] == self._lengths[axis]
            if not alike or not all(_has_tokens(view, each, inside=True) for view, each in own):
                return 0
        return self._pieces[axis][samples]


def _has_tokens(view: View, axis: Axis, inside: bool) -> bool:
    """Return whether an axis of a view is all tokens of its source.

    They lie behind samples, or are an axis that no input determines (positions); or anywhere, if ``inside``.
    """
    source = view.source
    if source.weight or len(axis) != 1 or axis[0].axis is None:
        return False
    here, loop = axis[0].axis, source.loops[axis[0].axis]
    known = loop == TOKEN if inside else (loop == TOKEN and here == source.loops.count(SAMPLE)) or loop == UNNAMED
    return known and axis[0].size == source.sizes[here]
