"""The operators of a layer, or of a whole model, on a mesh as a problem of `pipeplan_formulations.sharding`.

In nanoseconds and bytes. A signature of an operator is a strategy (`strategies`), and the placements in which parts of
sums that it makes are added up. Nodes are operators, and the sums of gradients that several operators return::

    norm ──┬──▶ query ──┐
       │   ├──▶ key   ──┤  (sum)        forward from maker to reader, backward from reader to maker, or to the
       │   └──▶ value ──┘    │          sum and from there to the maker
       └─────────────────────┘

Weights that are split along an axis whose loop they do not have are gathered for the forward and again for the input
gradient, and their own gradient is scattered for every micro-batch.

Operators that are alike, as those of equal layers, have the same tables, which are made once.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.operators import Operator
from pipeplan.core.strategies import Copy, LayerStrategies, Placements, Signature
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.copies import CopiedTensor, MeshCopies
from pipeplan.costs.sharding.joined import SharedWeight
from pipeplan.costs.sharding.layer_redistributions import copied_for_inputs, moves_again, waits
from pipeplan.costs.sharding.prices import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    class_axes,
    strategy_costs,
    tied_costs,
)
from pipeplan.costs.sharding.redistributions import Redistributions
from pipeplan.costs.sharding.rooflines import PASSES
from pipeplan.costs.sharding.signatures import Sum
from pipeplan.costs.sharding.strategies import gradient, made, returned, share
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Edge, Sharding

Array = NDArray[np.int64]
__all__ = ["MeshProblem", "Signature", "Sum"]


class MeshProblem(MeshCopies):
    """The choice of signatures for one layer, or for all layers of a model, on a mesh."""

    @cached_property
    def sharding(self) -> Sharding:
        """The problem; its coordinates are those of a team's."""
        operators, index = self.graph.operators, self.index
        sums = {each.tensor: len(index) + i for i, each in enumerate(self.sums)}
        costs = [self.once(self._costs_key(each), partial(self._costs, each)) for each in operators]
        edges: list[Edge] = []
        for each in self.sums:
            alike = self._alike(each)
            if each.tensor in index:
                costs.append(self.once(("from behind", alike), partial(self._from_behind, each)))
                table = self.once(("made", alike), partial(self._to_maker, each))
                edges.append(Edge(index[each.tensor], sums[each.tensor], table))
            else:
                costs.append(_added(self._from_behind(each), self._to_input(each)))
            for reader in self.readers[each.tensor]:
                key = "returned", alike, self.likeness[reader.name], reader.reads[each.tensor]
                table = self.once(key, partial(self._to_sum, each, reader))
                edges.append(Edge(index[reader.name], sums[each.tensor], table))
        for number, copied in enumerate(self.copied, len(costs)):
            made = "copying", copied.states, self.tensors[copied.tensor], self._for_inputs(copied.tensor)
            costs.append(self.once(made, partial(self._copy_costs, copied)))
            edges += self._copy_edges(copied, number)
        for reader in operators:
            for name in reader.reads:
                is_copied = name in self.copied_names
                if name in index and not (is_copied and name in sums):
                    own = reader.reads[name], self.likeness[name], name in sums, is_copied
                    pair = "read", self.likeness[reader.name], *own
                    table = self.once(pair, partial(self._edge, reader, name, name in sums, is_copied))
                    edges.append(Edge(index[name], index[reader.name], table))
        return Sharding(tuple(costs), (*edges, *(self._tie(each) for each in self.shared)))

    def signatures_of(self, choice: Sequence[int]) -> dict[str, Signature]:
        """Return the signature of each operator in a choice, by name."""
        operators = self.graph.operators
        return {each.name: own[k] for each, own, k in zip(operators, self.signatures, choice, strict=False)}

    def sums_of(self, choice: Sequence[int]) -> dict[str, Placements]:
        """Return the placements in which the gradient of each tensor that several operators read is summed up."""
        chosen = choice[len(self.graph.operators) :]
        return {each.tensor: each.choices[k] for each, k in zip(self.sums, chosen, strict=False)}

    def layer_strategies(self, choice: Sequence[int]) -> LayerStrategies:
        """Return how the layer runs in a choice."""
        return LayerStrategies(
            self.signatures_of(choice), self.sums_of(choice), self.input, self.output, self.copies(choice)
        )

    def copies(self, choice: Sequence[int]) -> dict[str, Copy]:
        """Return the copies of a choice, with the operators that read them."""
        signatures, found = self.signatures_of(choice), {}
        for each, k in zip(self.copied, choice[len(self.graph.operators) + len(self.sums) :], strict=True):
            state, readers = each.states[k], self.readers[each.tensor]
            needs = {own.name: self.needed(own, signatures[own.name].strategy, each.tensor) for own in readers}
            users = [own.name for own in readers if self.takes_copy(own, each.tensor, state, needs[own.name])]
            if state.copy is not None and len(users) > (not state.kept):
                found[each.tensor] = Copy(state.copy, tuple(users), state.kept)
        return found

    def _alike(self, own: Sum) -> tuple[object, ...]:
        """What determines the tables of a sum: what makes it, its placements, the tensor."""
        return self.likeness.get(own.tensor, own.tensor), own.choices, self.tensors[own.tensor]

    def _from_behind(self, own: Sum) -> Array:
        """Times in which the gradient of an output gets the placements of its sum; nothing for other tensors."""
        times = self.graph.outputs.count(own.tensor)
        if not times:
            return _free(len(own.choices))
        moves, end = self.moves(own.tensor, True), [self._end(own.tensor)]
        from_end: Array = _times(moves, end, own.choices, times * INPUT_GRADIENT)[0]
        return from_end

    def _to_maker(self, own: Sum) -> Array:
        """Times to give the maker of a tensor its gradient, summed up in placements."""
        maker = self.index[own.tensor]
        wanted = [gradient(self.graph.operators[maker], each.strategy) for each in self.signatures[maker]]
        return _times(self.moves(own.tensor, True), own.choices, wanted, INPUT_GRADIENT).swapaxes(0, 1)

    def _to_input(self, own: Sum) -> Array:
        """Times to give an input of the layer its gradient, summed up in placements."""
        return _times(self.moves(own.tensor, True), own.choices, [self._end(own.tensor)], INPUT_GRADIENT)[:, 0]

    def _to_sum(self, own: Sum, reader: Operator) -> Array:
        """Times to sum up the gradient that an operator returns in placements."""
        back = [returned(reader, each.strategy, own.tensor) for each in self.signatures[self.index[reader.name]]]
        return _times(self.moves(own.tensor, True), back, own.choices, INPUT_GRADIENT)

    def _edge(self, reader: Operator, name: str, summed: bool, copied: bool) -> Array:
        """Times to read what another operator makes, and to return its gradient where it is not a sum's.

        Of what may have a copy only the latter (see `_copy_edges`).
        Operators of a loss split the classes along the same axes, or none does.
        """
        maker, own = self.graph.operators[self.index[name]], self.signatures[self.index[name]]
        others = self.signatures[self.index[reader.name]]
        held, wanted = [each.held for each in own], [self.needed(reader, each.strategy, name) for each in others]
        costs = _times(self.moves(name, False), held, wanted, (not copied) * self._when(reader, name))
        if not summed and self._sends(name):
            back = [returned(reader, each.strategy, name) for each in others]
            goal = [gradient(maker, each.strategy) for each in own]
            moved = _times(self.moves(name, True), back, goal, INPUT_GRADIENT).swapaxes(0, 1)
            costs = _added(costs, moved)
        if {name, reader.name} <= {*self.graph.loss_names}:
            one, two = ([class_axes(each.strategy) for each in rows] for rows in (own, others))
            agrees = np.array([[a == b for b in two] for a in one])
            costs = np.where(agrees[..., None], costs, UNLIMITED)
        return costs

    def _costs_key(self, operator: Operator) -> tuple[object, ...]:
        """What determines the costs of an operator by itself: of inputs that may have copies it has none."""
        alone = tuple(name not in self.copied_names for name in operator.reads if name in self.graph.inputs)
        return "costs", self.likeness[operator.name], alone

    def _when(self, reader: Operator, source: str) -> Array:
        """The coordinates to which the time counts in which a reader gets a tensor: in the backward again, or not."""
        if not moves_again(self.graph, reader):
            return FORWARD
        return FORWARD + (WEIGHT_GRADIENT if waits(self.graph, reader, source) else INPUT_GRADIENT)

    def _copy_costs(self, copied: CopiedTensor) -> Array:
        """Times to make the copy of a tensor in each state, and its bytes where it is kept."""
        name, again = copied.tensor, INPUT_GRADIENT if self._for_inputs(copied.tensor) else WEIGHT_GRADIENT
        costs = _free(len(copied.states))
        for k, (held, copy, is_again, is_kept) in enumerate(copied.states):
            if copy is not None:
                when = FORWARD + again if is_again else FORWARD
                costs[k] = _times(self.moves(name, False), [held], [copy], when)[0, 0]
                costs[k, -1] += is_kept * (self.tensors[name].size // share(copy, self.mesh.sizes))
        return costs

    def _for_inputs(self, name: str) -> bool:
        return copied_for_inputs(self.graph, self.readers[name], name)

    def _copy_edges(self, copied: CopiedTensor, number: int) -> Iterator[Edge]:
        """A tensor that may have a copy is held as its maker says; readers get it from there, or from the copy."""
        name, states = copied
        if name in self.index:
            held = "held", self.likeness[name], states
            yield Edge(self.index[name], number, self.once(held, partial(self._held_alike, copied)))
        copy = None if self.only is None else self.only.copies.get(name)
        for reader in self.readers[name]:
            row, takes = reader.reads[name], copy and reader.name in copy.readers
            key = "copied", self.likeness[reader.name], row, self.likeness.get(name, name), states, takes
            yield Edge(number, self.index[reader.name], self.once(key, partial(self._from_copy, copied, reader)))

    def _held_alike(self, copied: CopiedTensor) -> Array:
        held = [each.held for each in self.signatures[self.index[copied.tensor]]]
        table = np.array([[own == state.held for state in copied.states] for own in held])
        return np.where(table, 0, UNLIMITED)[..., None].repeat(len(COORDINATES), axis=-1)

    def _from_copy(self, copied: CopiedTensor, reader: Operator) -> Array:
        """Times to read a tensor that may have a copy, and to return its gradient where it is not a sum's."""
        name, states = copied
        signatures, moves = self.signatures[self.index[reader.name]], self.moves(name, False)
        wanted = [self.needed(reader, each.strategy, name) for each in signatures]
        found = np.empty((len(states), len(wanted), 1), np.int64)
        for k, state in enumerate(states):
            for j, need in enumerate(wanted):
                source = state.copy if self.takes_copy(reader, name, state, need) else None
                found[k, j] = _limited(moves.cost(source or state.held, need))
        costs = np.where(found >= UNLIMITED, UNLIMITED, found * self._when(reader, name))
        if name in self.graph.inputs and name not in {each.tensor for each in self.sums} and self._sends(name):
            back = [returned(reader, each.strategy, name) for each in signatures]
            held = [state.held for state in states]
            costs = _added(costs, _times(self.moves(name, True), back, held, INPUT_GRADIENT).swapaxes(0, 1))
        return costs

    def _costs(self, operator: Operator) -> Array:
        """An operator costs its passes, what its weights send, and what is only its own to redistribute."""
        name, signatures = operator.name, self.signatures[self.index[operator.name]]
        rooflines, local, _ = self.own(operator)
        rows = {
            strategy: strategy_costs(rooflines, local, strategy, self.mesh, not self.joined)
            for strategy in {each.strategy for each in signatures}
        }
        costs = np.array([rows[each.strategy] for each in signatures], np.int64)
        costs[:, -1] += [rooflines.saved(local.name, share(each.held, self.mesh.sizes)) for each in signatures]
        moves, is_last = self.moves(name, False), self.tensors[name].end is not None and not self.readers.get(name)
        for k, (strategy, held) in enumerate(signatures):
            costs[k] = _added(costs[k], _times(moves, [made(operator, strategy)], [held], FORWARD)[0, 0])
            if is_last:
                back = _times(self.moves(name, True), [held], [gradient(operator, strategy)], INPUT_GRADIENT)[0, 0]
                costs[k] = _added(costs[k], back)
        if self.joined:
            if local.name == rooflines.graph.operators[0].name:
                costs[:, : len(PASSES)] += [rooflines.constant(each) for each in PASSES]
        else:
            for source in operator.reads:
                if source in self.graph.inputs and source not in self.copied_names:
                    costs = _added(costs, self._input(operator, source, signatures))
        return costs

    def _input(self, operator: Operator, source: str, signatures: Sequence[Signature]) -> Array:
        """What it takes to read an input of the layer, and to return its gradient where it is not a sum's."""
        held, wanted = self._end(source), [self.needed(operator, each.strategy, source) for each in signatures]
        costs: Array = _times(self.moves(source, False), [held], wanted, self._when(operator, source))[0]
        if source not in {each.tensor for each in self.sums}:
            back = [returned(operator, each.strategy, source) for each in signatures]
            moved = _times(self.moves(source, True), back, [held], INPUT_GRADIENT)[:, 0]
            costs = _added(costs, moved)
        return costs

    def _tie(self, shared: SharedWeight) -> Edge:
        """Weights that two operators share lie alike; what the later one adds to the sum of their gradients."""
        first, later = self.index[shared.first], self.index[shared.later]
        one, two = self.graph.operators[first], self.graph.operators[later]
        table = [
            [tied_costs(shared.weight, shared.copy, ((one, a.strategy), (two, b.strategy)), self.mesh) for b in rows]
            for rows in [self.signatures[later]]
            for a in self.signatures[first]
        ]
        return Edge(first, later, np.array(table, np.int64))


def _free(count: int) -> Array:
    """Signatures that cost nothing by themselves."""
    return np.zeros((count, len(COORDINATES)), np.int64)


def _added(one: Array, two: Array) -> Array:
    """The sum of costs, `UNLIMITED` where one of them is."""
    return np.where(np.maximum(one, two) >= UNLIMITED, UNLIMITED, one + two)


def _times(
    moves: Redistributions[int], sources: Sequence[Placements], targets: Sequence[Placements], coordinates: Array
) -> Array:
    """Times between placements, in these coordinates; `UNLIMITED` where there is no path."""
    rows, columns = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
    found = np.array([[_limited(moves.cost(a, b)) for b in columns] for a in rows], np.int64)
    row, column = {a: i for i, a in enumerate(rows)}, {b: i for i, b in enumerate(columns)}
    table = found[np.ix_([row[a] for a in sources], [column[b] for b in targets])][..., None]
    return np.where(table >= UNLIMITED, UNLIMITED, table * coordinates)


def _limited(cost: int | None) -> int:
    return UNLIMITED if cost is None else cost
