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
from pipeplan.costs.sharding.rooflines import PASSES, Rooflines
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
        """The problem; its coordinates are those of a team's. Of several layers it has the sums."""
        if self.count == 1:
            return self._of_one
        every = self._of_one.project(self.count * np.eye(len(COORDINATES), dtype=np.int64))
        costs = [added(own, self._beyond(each)) for own, each in zip(every.costs, self.graph.operators, strict=False)]
        return Sharding((*costs, *every.costs[len(costs) :]), every.edges)

    def _beyond(self, operator: Operator) -> Array:
        """What an operator costs in all layers by itself beyond as many times what it costs in the first."""
        first = self._alone(operator, self.layer)
        more: Array = np.sum([count * (self._alone(operator, own) - first) for own, count in self.layers], axis=0)
        return more

    @cached_property
    def _of_one(self) -> Sharding:
        """The problem of the first layer, or of joined ones."""
        operators, index = self.graph.operators, self.index
        sums = {summed.tensor: len(index) + i for i, summed in enumerate(self.sums)}
        costs = [self.once(self._costs_key(operator), partial(self._costs, operator)) for operator in operators]
        edges: list[Edge] = []
        for summed in self.sums:
            alike = self._alike(summed)
            if summed.tensor in index:
                costs.append(self.once(("from behind", alike), partial(self._from_behind, summed)))
                table = self.once(("made", alike), partial(self._to_maker, summed))
                edges.append(Edge(index[summed.tensor], sums[summed.tensor], table))
            else:
                costs.append(added(self._from_behind(summed), self._to_input(summed)))
            for reader in self.readers[summed.tensor]:
                key = "returned", alike, self.likeness[reader.name], reader.reads[summed.tensor]
                table = self.once(key, partial(self._to_sum, summed, reader))
                edges.append(Edge(index[reader.name], sums[summed.tensor], table))
        for number, copied in enumerate(self.copied, len(costs)):
            made = "copying", copied.states, self.tensors[copied.tensor], self._for_inputs(copied.tensor)
            costs.append(self.once(made, partial(self._copy_costs, copied)))
            edges += self._copy_edges(copied, number)
        for reader in operators:
            for name in reader.reads:
                is_copied = name in self.copied_names
                if name in index and not (is_copied and name in sums):
                    tensor = reader.reads[name], self.likeness[name], name in sums, is_copied
                    pair = "read", self.likeness[reader.name], *tensor
                    table = self.once(pair, partial(self._edge, reader, name, name in sums, is_copied))
                    edges.append(Edge(index[name], index[reader.name], table))
        return Sharding(tuple(costs), (*edges, *(self._tie(shared) for shared in self.shared)))

    def signatures_of(self, choice: Sequence[int]) -> dict[str, Signature]:
        """Return the signature of each operator in a choice, by name."""
        operators = self.graph.operators
        return {
            operator.name: signatures[k]
            for operator, signatures, k in zip(operators, self.signatures, choice, strict=False)
        }

    def sums_of(self, choice: Sequence[int]) -> dict[str, Placements]:
        """Return the placements in which the gradient of each tensor that several operators read is summed up."""
        chosen = choice[len(self.graph.operators) :]
        return {summed.tensor: summed.choices[k] for summed, k in zip(self.sums, chosen, strict=False)}

    def layer_strategies(self, choice: Sequence[int]) -> LayerStrategies:
        """Return how the layer runs in a choice."""
        return LayerStrategies(
            self.signatures_of(choice), self.sums_of(choice), self.input, self.output, self.copies(choice)
        )

    def copies(self, choice: Sequence[int]) -> dict[str, Copy]:
        """Return the copies of a choice, with the operators that read them."""
        signatures, copies = self.signatures_of(choice), {}
        for copied, k in zip(self.copied, choice[len(self.graph.operators) + len(self.sums) :], strict=True):
            state, readers = copied.states[k], self.readers[copied.tensor]
            needs = {
                reader.name: self.needed(reader, signatures[reader.name].strategy, copied.tensor) for reader in readers
            }
            users = [
                reader.name for reader in readers if self.takes_copy(reader, copied.tensor, state, needs[reader.name])
            ]
            if state.copy is not None and len(users) > (not state.kept):
                copies[copied.tensor] = Copy(state.copy, tuple(users), state.kept)
        return copies

    def _alike(self, summed: Sum) -> tuple[object, ...]:
        """What determines the tables of a sum: what makes it, its placements, the tensor."""
        return self.likeness.get(summed.tensor, summed.tensor), summed.choices, self.tensors[summed.tensor]

    def _from_behind(self, summed: Sum) -> Array:
        """Times in which the gradient of an output gets the placements of its sum; nothing for other tensors."""
        times = self.graph.outputs.count(summed.tensor)
        if not times:
            return _free(len(summed.choices))
        moves, end = self.moves(summed.tensor, True), [self._end(summed.tensor)]
        from_end: Array = _times(moves, end, summed.choices, times * INPUT_GRADIENT)[0]
        return from_end

    def _to_maker(self, summed: Sum) -> Array:
        """Times to give the maker of a tensor its gradient, summed up in placements."""
        maker = self.index[summed.tensor]
        wanted = [gradient(self.graph.operators[maker], signature.strategy) for signature in self.signatures[maker]]
        return _times(self.moves(summed.tensor, True), summed.choices, wanted, INPUT_GRADIENT).swapaxes(0, 1)

    def _to_input(self, summed: Sum) -> Array:
        """Times to give an input of the layer its gradient, summed up in placements."""
        return _times(self.moves(summed.tensor, True), summed.choices, [self._end(summed.tensor)], INPUT_GRADIENT)[:, 0]

    def _to_sum(self, summed: Sum, reader: Operator) -> Array:
        """Times to sum up the gradient that an operator returns in placements."""
        back = [
            returned(reader, signature.strategy, summed.tensor)
            for signature in self.signatures[self.index[reader.name]]
        ]
        return _times(self.moves(summed.tensor, True), back, summed.choices, INPUT_GRADIENT)

    def _edge(self, reader: Operator, name: str, summed: bool, copied: bool) -> Array:
        """Times to read what another operator makes, and to return its gradient where it is not a sum's.

        Of what may have a copy only the latter (see `_copy_edges`).
        Operators of a loss split the classes along the same axes, or none does.
        """
        maker, makers = self.graph.operators[self.index[name]], self.signatures[self.index[name]]
        others = self.signatures[self.index[reader.name]]
        held, wanted = (
            [signature.held for signature in makers],
            [self.needed(reader, signature.strategy, name) for signature in others],
        )
        costs = _times(self.moves(name, False), held, wanted, (not copied) * self._when(reader, name))
        if not summed and self._sends(name):
            back = [returned(reader, signature.strategy, name) for signature in others]
            goal = [gradient(maker, signature.strategy) for signature in makers]
            moved = _times(self.moves(name, True), back, goal, INPUT_GRADIENT).swapaxes(0, 1)
            costs = added(costs, moved)
        if {name, reader.name} <= {*self.graph.loss_names}:
            one, two = ([class_axes(signature.strategy) for signature in rows] for rows in (makers, others))
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
        held = [signature.held for signature in self.signatures[self.index[copied.tensor]]]
        table = np.array([[placements == state.held for state in copied.states] for placements in held])
        return np.where(table, 0, UNLIMITED)[..., None].repeat(len(COORDINATES), axis=-1)

    def _from_copy(self, copied: CopiedTensor, reader: Operator) -> Array:
        """Times to read a tensor that may have a copy, and to return its gradient where it is not a sum's."""
        name, states = copied
        signatures, moves = self.signatures[self.index[reader.name]], self.moves(name, False)
        wanted = [self.needed(reader, signature.strategy, name) for signature in signatures]
        times = np.empty((len(states), len(wanted), 1), np.int64)
        for k, state in enumerate(states):
            for j, need in enumerate(wanted):
                source = state.copy if self.takes_copy(reader, name, state, need) else None
                times[k, j] = _limited(moves.cost(source or state.held, need))
        costs = np.where(times >= UNLIMITED, UNLIMITED, times * self._when(reader, name))
        if name in self.graph.inputs and name not in {summed.tensor for summed in self.sums} and self._sends(name):
            back = [returned(reader, signature.strategy, name) for signature in signatures]
            held = [state.held for state in states]
            costs = added(costs, _times(self.moves(name, True), back, held, INPUT_GRADIENT).swapaxes(0, 1))
        return costs

    def _costs(self, operator: Operator) -> Array:
        """An operator costs its passes, what its weights send, and what is only its own to redistribute."""
        name, signatures = operator.name, self.signatures[self.index[operator.name]]
        rooflines, local, _ = self.own(operator)
        costs = self._alone(operator, rooflines).copy()
        moves, is_last = self.moves(name, False), self.tensors[name].end is not None and not self.readers.get(name)
        for k, (strategy, held) in enumerate(signatures):
            costs[k] = added(costs[k], _times(moves, [made(operator, strategy)], [held], FORWARD)[0, 0])
            if is_last:
                back = _times(self.moves(name, True), [held], [gradient(operator, strategy)], INPUT_GRADIENT)[0, 0]
                costs[k] = added(costs[k], back)
        if self.joined:
            if local.name == rooflines.graph.operators[0].name:
                costs[:, : len(PASSES)] += [rooflines.constant(pass_name) for pass_name in PASSES]
        else:
            for source in operator.reads:
                if source in self.graph.inputs and source not in self.copied_names:
                    costs = added(costs, self._input(operator, source, signatures))
        return costs

    def _alone(self, operator: Operator, rooflines: Rooflines) -> Array:
        """What an operator costs by itself in a layer, whatever is redistributed."""
        key = "alone", self.likeness[operator.name], id(rooflines)
        return self.once(key, partial(self._costs_alone, operator, rooflines))

    def _costs_alone(self, operator: Operator, rooflines: Rooflines) -> Array:
        local, signatures = self.own(operator).operator, self.signatures[self.index[operator.name]]
        rows = {
            strategy: strategy_costs(rooflines, local, strategy, self.mesh, not self.joined)
            for strategy in {signature.strategy for signature in signatures}
        }
        costs = np.array([rows[signature.strategy] for signature in signatures], np.int64)
        costs[:, -1] += [
            rooflines.saved(local.name, share(signature.held, self.mesh.sizes)) for signature in signatures
        ]
        return costs

    def _input(self, operator: Operator, source: str, signatures: Sequence[Signature]) -> Array:
        """What it takes to read an input of the layer, and to return its gradient where it is not a sum's."""
        held, wanted = (
            self._end(source),
            [self.needed(operator, signature.strategy, source) for signature in signatures],
        )
        costs: Array = _times(self.moves(source, False), [held], wanted, self._when(operator, source))[0]
        if source not in {summed.tensor for summed in self.sums}:
            back = [returned(operator, signature.strategy, source) for signature in signatures]
            moved = _times(self.moves(source, True), back, [held], INPUT_GRADIENT)[:, 0]
            costs = added(costs, moved)
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


def added(one: Array, two: Array) -> Array:
    """The sum of costs, `UNLIMITED` where one of them is."""
    return np.where(np.maximum(one, two) >= UNLIMITED, UNLIMITED, one + two)


def _times(
    moves: Redistributions[int], sources: Sequence[Placements], targets: Sequence[Placements], coordinates: Array
) -> Array:
    """Times between placements, in these coordinates; `UNLIMITED` where there is no path."""
    rows, columns = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
    costs = np.array([[_limited(moves.cost(a, b)) for b in columns] for a in rows], np.int64)
    row, column = {a: i for i, a in enumerate(rows)}, {b: i for i, b in enumerate(columns)}
    table = costs[np.ix_([row[a] for a in sources], [column[b] for b in targets])][..., None]
    return np.where(table >= UNLIMITED, UNLIMITED, table * coordinates)


def _limited(cost: int | None) -> int:
    return UNLIMITED if cost is None else cost
