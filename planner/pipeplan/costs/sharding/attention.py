"""Attention on a mesh whose axes split tokens: how each device gets the keys that it needs, and what that takes.

Each axis along which the entry of attention has the loop `TOKEN` has a method, in this order, the outermost axis
first::

    by ring     at most one axis: keys of its devices go round, block by block, while the block at hand is attended to
    by keys     keys and values are gathered, the innermost axis first
    by heads    tokens are exchanged for heads, so that a device has some heads of the tokens of all of them

So of an axis by ring over nodes and one by heads inside them, a device has 1/n of the heads of a node's tokens, and the
keys of these heads go round over the nodes. The backward exchanges and gathers again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from pipeplan.core.operators import SAMPLE, TOKEN, Attention, Operator
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, BY_RING, UNSPLIT, AxisStrategy, Strategy
from pipeplan.costs.sharding.exchanges import Exchange, collective
from pipeplan.costs.sharding.ring import BUFFERS, messages, ring_passes
from pipeplan.costs.sharding.rooflines import PASSES, Rooflines
from pipeplan.costs.sharding.shapes import Mesh

ORDER = (BY_RING, BY_KEYS, BY_HEADS)
"""Methods of axes that split tokens, the outermost first."""


def attention_strategies(operator: Operator) -> tuple[AxisStrategy, ...]:
    """Return the entries that an operator has as attention, beside those of its loops."""
    if operator.attention is None or TOKEN not in operator.loops:
        return ()
    return tuple(AxisStrategy(TOKEN, by=by) for by in ORDER if by != BY_KEYS)


def method_of(entry: AxisStrategy) -> str:
    """Return how an axis that splits tokens gets keys."""
    return entry.by or BY_KEYS


def axes_by(strategy: Strategy, by: str) -> tuple[int, ...]:
    """Return the axes that split tokens by a method."""
    return tuple(axis for axis, entry in enumerate(strategy) if entry.loop == TOKEN and method_of(entry) == by)


def attends(operator: Operator, strategy: Strategy, sizes: Sequence[int]) -> bool:
    """Return whether attention can run by a strategy: methods in order, one ring, heads for all that exchange them."""
    methods = [method_of(entry) for entry in strategy if entry.loop == TOKEN]
    if operator.attention is None:
        return True
    heads = prod(
        n
        for n, entry in zip(sizes, strategy, strict=True)
        if (entry.by == BY_HEADS if entry.loop == TOKEN else entry.loop not in (UNSPLIT, SAMPLE))
    )
    in_order = methods == sorted(methods, key=ORDER.index) and methods.count(BY_RING) < 2
    return in_order and (BY_HEADS not in methods or operator.attention.heads % heads == 0)


class KeyExchange(NamedTuple):
    """A collective of attention: its axis, and the bytes of what the devices along it have together."""

    kind: Exchange
    back: bool
    axis: int
    size: int


@dataclass(frozen=True)
class SplitAttention:
    """Attention whose tokens some axes split.

    Attributes
    ----------
    rooflines : Rooflines
        Of its layer.
    operator : Operator
    strategy : Strategy
    sizes : tuple of int
        Devices along each axis.
    """

    rooflines: Rooflines
    operator: Operator
    strategy: Strategy
    sizes: tuple[int, ...]

    def exchanges(self) -> Iterator[KeyExchange]:
        """Yield the collectives by heads, innermost axis first, then those by keys."""
        both, made = self._attention.queries + self._attention.keys, self.operator.output
        tokens = [axis for axis, entry in enumerate(self.strategy) if entry.loop == TOKEN]
        for axis in reversed(self._axes(BY_HEADS)):
            beside = self._apart * self._count(each for each in tokens if each != axis)
            turns = ((both, False), (made, False), (both, True), (2 * made, True), (both, True))
            yield from self._sent([(Exchange.TURN, *each) for each in turns], axis, beside)
        for axis in reversed(self._axes(BY_KEYS)):
            beside = self._apart * self._count((*self._axes(BY_HEADS), *(each for each in tokens if each < axis)))
            keys = ((Exchange.GATHER, False), (Exchange.GATHER, True), (Exchange.SCATTER, True))
            yield from self._sent([(kind, self._attention.keys, back) for kind, back in keys], axis, beside)

    def shifts(self) -> Iterator[KeyExchange]:
        """Yield the messages of a ring: a block of keys, or the gradient of one, from each device to the next."""
        for axis in self._axes(BY_RING):
            for back in (False, True)[: 1 + self._has_gradient]:
                for _ in range(sum(messages(self.sizes[axis], back)) if self._block else 0):
                    yield KeyExchange(Exchange.SHIFT, back, axis, self._block * self.sizes[axis])

    def passes(self, passes: Sequence[int], mesh: Mesh) -> list[int]:
        """Return the nanoseconds of `PASSES`, given those of the attention alone on the device that works longest."""
        found = list(passes)
        for axis in self._axes(BY_RING):
            count, inner = mesh.sizes[axis], self._count(self._axes(BY_KEYS))
            shares = [2 * inner - 1] + [2 * inner] * (count - 1) if self._attention.causal else [1] * count
            found = ring_passes(found, shares, self._block, mesh.links[axis], self._has_gradient)
            for place, name in enumerate(PASSES[:3]):  # each block but the first is an operator more
                has_time = bool(getattr(self.rooflines.cost, name))
                found[place] += (count - 1) * self.rooflines.kind.shard_overhead * has_time
        for kind, back, axis, size in self.exchanges():
            time = collective(kind, size, mesh.sizes[axis], mesh.links[axis], *mesh.sharing[axis : axis + 1])
            for place in (PASSES.index("backward"), PASSES.index("input_gradient")) if back else (0,):
                found[place] += time
        return found

    @property
    def beside(self) -> int:
        """Most bytes that come to it in a backward beside its own parts: keys or blocks of them, and what is turned."""
        kept = BUFFERS * self._block if self._axes(BY_RING) else 0
        if not kept and self._axes(BY_KEYS):
            kept = 2 * self._part(self._attention.keys, self._apart * self._count(self._axes(BY_HEADS)))
        if self._axes(BY_HEADS):
            tokens = self._count(axis for axis, entry in enumerate(self.strategy) if entry.loop == TOKEN)
            every = self._attention.queries + self._attention.keys + self.operator.output
            kept += self._part(2 * every, self._apart * tokens)
        return kept

    @property
    def by_keys(self) -> int:
        """Devices that share out the queries of the same heads, of which each needs all keys."""
        return self._count((*self._axes(BY_RING), *self._axes(BY_KEYS)))

    @property
    def _attention(self) -> Attention:
        assert self.operator.attention is not None
        return self.operator.attention

    @property
    def _has_gradient(self) -> bool:
        return self.operator.name not in self.rooflines.graph.without_gradient

    @property
    def _block(self) -> int:
        """Bytes of the keys and values that go round at a time."""
        parts = self._count((*self._axes(BY_RING), *self._axes(BY_HEADS)))
        return self._part(self._attention.keys, self._apart * parts)

    @property
    def _apart(self) -> int:
        """Devices that have other samples or heads."""
        return prod(n for n, entry in zip(self.sizes, self.strategy, strict=True) if entry.loop not in (TOKEN, UNSPLIT))

    def _axes(self, by: str) -> tuple[int, ...]:
        return axes_by(self.strategy, by)

    def _count(self, axes: Iterable[int]) -> int:
        return prod(self.sizes[axis] for axis in axes)

    def _part(self, size: int, parts: int) -> int:
        return -(-size * self.rooflines.micro_batch // parts)

    def _sent(self, rows: Iterable[tuple[Exchange, int, bool]], axis: int, beside: int) -> Iterator[KeyExchange]:
        for kind, size, back in rows:
            if self._has_gradient or not back:
                yield KeyExchange(kind, back, axis, self._part(size, beside))


def split_attention(
    rooflines: Rooflines, operator: Operator, strategy: Strategy, sizes: Sequence[int]
) -> SplitAttention | None:
    """Return attention on parts of the tokens; None for other operators, and attention on all tokens."""
    if operator.attention is None or all(entry.loop != TOKEN for entry in strategy):
        return None
    return SplitAttention(rooflines, operator, strategy, tuple(sizes))
