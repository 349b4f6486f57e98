"""The operators of a layer on a mesh as a problem of `pipeplan_formulations.sharding`, in nanoseconds and bytes.

The problem of teams (`pipeplan.costs.teams.problem`) with several axes; what a linear map has beside its loop on each
is in `words`. A signature of an operator is a word, and the layout in which parts of sums that it makes are added up.
Nodes are operators, and the sums of gradients that several operators return::

    norm ──┬──▶ query ──┐
       │   ├──▶ key   ──┤  (sum)        forward from maker to reader, backward from reader to maker, or to the
       │   └──▶ value ──┘    │          sum and from there to the maker
       └─────────────────────┘

Weights that are split along an axis whose loop they do not have are gathered for the forward and again for the input
gradient, and their own gradient is scattered for every micro-batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import lcm, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.operators import TOKEN, Operator
from pipeplan.core.words import Layout, Signature, Word
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan.costs.meshes.redistributions import Redistributions, times
from pipeplan.costs.meshes.shapes import Mesh
from pipeplan.costs.meshes.words import gradient, made, needed, returned, share, words
from pipeplan.costs.teams.problem import COORDINATES
from pipeplan.costs.teams.rooflines import PASSES, Rooflines
from pipeplan.costs.teams.signatures import PARTIAL, UNSPLIT, WHOLE, Exchange, collective, crossings, stream
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Edge, Sharding

Array = NDArray[np.int64]
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = (
    np.array([int(name in row) for name in COORDINATES], np.int64)
    for row in (("forward",), ("backward", "input_gradient"), ("backward", "weight_gradient"))
)
"""The coordinates to which times of these passes are added."""


class Sum(NamedTuple):
    """The gradient of a tensor that several operators return, and the layouts in which it may be summed up."""

    tensor: str
    layouts: tuple[Layout, ...]


@dataclass(frozen=True)
class MeshProblem:
    """The choice of signatures for one layer on a mesh.

    Attributes
    ----------
    rooflines : Rooflines
        The layer on one device, and what its operators take.
    mesh : Mesh
    input, output : Layout
        Of what the layer reads and makes, and of its gradient; of several inputs or outputs that of the `stream`,
        others are whole. Empty is whole.
    tokens : bool
        Whether operators may be split along tokens.
    gathers : bool
        Whether weights may be gathered.
    scatters : bool
        Whether parts of sums may be added up to parts of any dimension, or only to the whole.
    """

    rooflines: Rooflines
    mesh: Mesh
    input: Layout = ()
    output: Layout = ()
    tokens: bool = True
    gathers: bool = True
    scatters: bool = True
    _moves: dict[tuple[str, bool], Redistributions[int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def signatures(self) -> tuple[tuple[Signature, ...], ...]:
        """Those of each operator. A loss is whole."""
        graph, sizes = self.rooflines.graph, self.mesh.sizes
        found = []
        for each in graph.operators:
            own = words(each, sizes, self.gathers, self.tokens)
            if each.name in graph.loss_names:
                own = tuple(word for word in own if all(letter.loop == UNSPLIT for letter in word))
            found.append(tuple(Signature(word, held) for word in own for held in self._held(each, word)))
        return tuple(found)

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """Tensors whose gradients are summed up in a layout that is chosen."""
        graph, found = self.rooflines.graph, []
        for name in (*graph.inputs, *(each.name for each in graph.operators)):
            readers = [v for v, each in enumerate(graph.operators) if name in each.reads]
            if len(readers) > 1 and not self._is_end(name):
                layouts = {(WHOLE,) * len(self.mesh.sizes)} | ({self._end(name)} if name in graph.inputs else set())
                for v, each in enumerate(graph.operators):
                    for word in {signature.word for signature in self.signatures[v]}:
                        layouts |= {returned(each, word, name)} if v in readers else set()
                        layouts |= {gradient(each, word)} if each.name == name else set()
                found.append(Sum(name, tuple(sorted(layouts))))
        return tuple(found)

    @cached_property
    def sharding(self) -> Sharding:
        """The problem; its coordinates are those of a team's."""
        graph = self.rooflines.graph
        index = {each.name: v for v, each in enumerate(graph.operators)}
        sums = {each.tensor: len(index) + i for i, each in enumerate(self.sums)}
        costs = [self._costs(each, own) for each, own in zip(graph.operators, self.signatures, strict=True)]
        edges: list[Edge] = []
        for name, layouts in self.sums:
            node, moves = sums[name], self._redistributions(name, True)
            if name in index:
                wanted = [gradient(graph.operators[index[name]], own.word) for own in self.signatures[index[name]]]
                edges.append(Edge(index[name], node, _times(moves, layouts, wanted, INPUT_GRADIENT).swapaxes(0, 1)))
                costs.append(np.zeros((len(layouts), len(COORDINATES)), np.int64))
            else:
                costs.append(_times(moves, layouts, [self._end(name)], INPUT_GRADIENT)[:, 0])
        for v, each in enumerate(graph.operators):
            for name in each.reads:
                back = [returned(each, own.word, name) for own in self.signatures[v]]
                if name in sums:
                    layouts = self.sums[sums[name] - len(index)].layouts
                    moves = self._redistributions(name, True)
                    edges.append(Edge(v, sums[name], _times(moves, back, layouts, INPUT_GRADIENT)))
                if name in index:
                    edges.append(self._edge(each, name, index[name], v, name in sums))
        return Sharding(tuple(costs), tuple(edges))

    def words(self, choice: Sequence[int]) -> dict[str, Signature]:
        """Return the signature of each operator in a choice, by name."""
        operators = self.rooflines.graph.operators
        return {each.name: own[k] for each, own, k in zip(operators, self.signatures, choice, strict=False)}

    def _is_end(self, name: str) -> bool:
        """Whether a tensor's gradient has the tensor's own layout: outputs, and what no operator reads."""
        graph = self.rooflines.graph
        return name in graph.outputs or (name in graph.whole and name not in graph.inputs)

    def _end(self, name: str) -> Layout:
        """Layout of an input or output of the layer."""
        graph = self.rooflines.graph
        names, layout = (tuple(graph.inputs), self.input) if name in graph.inputs else (graph.outputs, self.output)
        return layout if layout and name == stream(graph, names) else (WHOLE,) * len(self.mesh.sizes)

    def _held(self, operator: Operator, word: Word) -> tuple[Layout, ...]:
        if operator.name in self.rooflines.graph.whole:
            return (self._end(operator.name),)
        targets = (WHOLE, *range(len(operator.makes))) if self.scatters else (WHOLE,)
        found = product(*(targets if entry == PARTIAL else (entry,) for entry in made(operator, word)))
        fits = self._redistributions(operator.name, False).fits
        return tuple(layout for layout in found if PARTIAL not in made(operator, word) or fits(layout))

    def _redistributions(self, name: str, gradient: bool) -> Redistributions[int]:
        """Those of a tensor for a micro-batch, or of its gradient, which some do not have."""
        if (name, gradient) not in self._moves:
            graph = self.rooflines.graph
            free = gradient and name in graph.without_gradient
            size = 0 if free else self.rooflines.sizes[name] * self.rooflines.micro_batch
            rows = [(each, each.reads[name]) for each in graph.operators if name in each.reads]
            rows += [(each, each.makes) for each in graph.operators if each.name == name]
            parts = [lcm(*(each.loops.get(axes[i], 1) for each, axes in rows)) for i in range(len(rows[0][1]))]
            self._moves[name, gradient] = times(size, self.mesh.sizes, self.mesh.links, tuple(parts))
        return self._moves[name, gradient]

    def _edge(self, reader: Operator, name: str, source: int, target: int, summed: bool) -> Edge:
        """What it takes to read what another operator makes, and to return its gradient where it is not a sum's."""
        maker, own, others = self.rooflines.graph.operators[source], self.signatures[source], self.signatures[target]
        weights = (FORWARD + WEIGHT_GRADIENT) if reader.weights else FORWARD
        held, wanted = [each.held for each in own], [needed(reader, each.word, name) for each in others]
        costs = _times(self._redistributions(name, False), held, wanted, weights)
        if not summed:
            back = [returned(reader, each.word, name) for each in others]
            goal = held if self._is_end(name) else [gradient(maker, each.word) for each in own]
            moved = _times(self._redistributions(name, True), back, goal, INPUT_GRADIENT).swapaxes(0, 1)
            costs = _added(costs, moved)
        return Edge(source, target, costs)

    def _costs(self, operator: Operator, signatures: Sequence[Signature]) -> Array:
        """An operator costs its passes, what its weights send, and what is only its own to redistribute."""
        graph, name = self.rooflines.graph, operator.name
        rows = {word: self._word(operator, word) for word in {each.word for each in signatures}}
        costs = np.array([rows[each.word] for each in signatures], np.int64)
        costs[:, -1] += [self.rooflines.saved(name, share(each.held, self.mesh.sizes)) for each in signatures]
        moves = self._redistributions(name, False)
        for k, (word, held) in enumerate(signatures):
            costs[k] = _added(costs[k], _times(moves, [made(operator, word)], [held], FORWARD)[0, 0])
            if self._is_end(name):
                wanted = gradient(operator, word)
                back = _times(self._redistributions(name, True), [held], [wanted], INPUT_GRADIENT)[0, 0]
                costs[k] = _added(costs[k], back)
        for source in operator.reads:
            if source in graph.inputs:
                costs = _added(costs, self._input(operator, source, signatures))
        return costs

    def _input(self, operator: Operator, source: str, signatures: Sequence[Signature]) -> Array:
        """What it takes to read an input of the layer, and to return its gradient where it is not a sum's."""
        held, weights = self._end(source), (FORWARD + WEIGHT_GRADIENT) if operator.weights else FORWARD
        wanted = [needed(operator, each.word, source) for each in signatures]
        costs: Array = _times(self._redistributions(source, False), [held], wanted, weights)[0]
        if source not in {each.tensor for each in self.sums}:
            back = [returned(operator, each.word, source) for each in signatures]
            moved = _times(self._redistributions(source, True), back, [held], INPUT_GRADIENT)[:, 0]
            costs = _added(costs, moved)
        return costs

    def _word(self, operator: Operator, word: Word) -> Array:
        """Passes, update, sums once per step, bytes of weights."""
        sizes = self.mesh.sizes
        parts: dict[str, int] = {}
        for n, letter in zip(sizes, word, strict=True):
            if letter.loop != UNSPLIT:
                parts[letter.loop] = parts.get(letter.loop, 1) * n
        own = sum(
            weight.size // self._shards(weight.loops, word)
            for weight in operator.weights
            if weight in self.rooflines.counted
        )
        by_keys = parts.get(TOKEN, 1) if operator.attention is not None else 1
        passes = self.rooflines.passes(operator, parts, by_keys)
        for kind, back, axis, size in self._crossings(operator, word):
            time = collective(kind, size, sizes[axis], self.mesh.links[axis])
            for place in (PASSES.index("backward"), PASSES.index("input_gradient")) if back else (0,):
                passes[place] += time
        gathered, summed = (self._along(operator, word, gathers) for gathers in (True, False))
        row = np.array([*passes, self.rooflines.update(own), summed, own, 0], np.int64)
        return row + gathered * (FORWARD + INPUT_GRADIENT + WEIGHT_GRADIENT)

    def _crossings(self, operator: Operator, word: Word) -> Iterator[tuple[Exchange, bool, int, int]]:
        """Yield what attention on parts of the tokens exchanges: collective, in the backward or not, axis and bytes.

        Keys are gathered along the innermost axis first.
        """
        sizes = self.mesh.sizes
        own = [axis for axis, letter in enumerate(word) if letter.loop == TOKEN]
        others = prod(n for n, letter in zip(sizes, word, strict=True) if letter.loop not in (TOKEN, UNSPLIT))
        has_gradient = operator.name not in self.rooflines.graph.without_gradient
        for crossing in crossings(operator, TOKEN, has_gradient) if own else ():
            for k, axis in enumerate(own):
                share = others * prod(sizes[outer] for outer in own[:k])
                yield crossing.kind, crossing.back, axis, -(-crossing.size * self.rooflines.micro_batch // share)

    def _along(self, operator: Operator, word: Word, gathers: bool) -> int:
        """Nanoseconds of collectives on weights, along the axes that gather them, or those that sum their gradients.

        Gradients are scattered along one axis after the other, in the best order, and gathered backward; weights are
        gathered only. Along the last axis sums are an all-reduce.
        """
        axes = [
            axis
            for axis, letter in enumerate(word)
            if letter.gathers == gathers and letter.loop != UNSPLIT and letter.loop in operator.makes
        ]
        held = tuple(letter._replace(gathers=False) for letter in word) if gathers else word

        def took(axis: int, before: frozenset[int]) -> int:
            """Nanoseconds along one axis, with parts along others before it."""
            size = sum(
                weight.size
                // self._shards(weight.loops, held)
                // prod(self.mesh.sizes[k] for k in before if word[k].loop not in weight.loops)
                for weight in operator.weights
                if word[axis].loop not in weight.loops
            )
            if not size:
                return 0
            ring = all_reduce(self.mesh.sizes[axis], self.mesh.links[axis])
            if gathers:
                return alone(ring.one_way, size)
            return alone(ring, size) if len(before) == len(axes) - 1 else 2 * alone(ring.one_way, size)

        def least(before: frozenset[int]) -> int:
            """Nanoseconds along all other axes."""
            left = [axis for axis in axes if axis not in before]
            return min((took(axis, before) + least(before | {axis}) for axis in left), default=0)

        return least(frozenset())

    def _shards(self, loops: tuple[str, ...], word: Word) -> int:
        """Into how many parts a weight with these loops is split."""
        return prod(
            n
            for n, letter in zip(self.mesh.sizes, word, strict=True)
            if letter.loop != UNSPLIT and (letter.loop in loops or letter.gathers)
        )


def _added(one: Array, two: Array) -> Array:
    """The sum of costs, `UNLIMITED` where one of them is."""
    return np.where(np.maximum(one, two) >= UNLIMITED, UNLIMITED, one + two)


def _times(
    moves: Redistributions[int], sources: Sequence[Layout], targets: Sequence[Layout], coordinates: Array
) -> Array:
    """Times between layouts, in these coordinates; `UNLIMITED` where there is no way."""
    rows, columns = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
    found = np.array([[_limited(moves.cost(a, b)) for b in columns] for a in rows], np.int64)
    row, column = {a: i for i, a in enumerate(rows)}, {b: i for i, b in enumerate(columns)}
    table = found[np.ix_([row[a] for a in sources], [column[b] for b in targets])][..., None]
    return np.where(table >= UNLIMITED, UNLIMITED, table * coordinates)


def _limited(cost: int | None) -> int:
    return UNLIMITED if cost is None else cost
