"""`MeshLayer`: a layer's forward on a mesh, call by call; autograd makes its backward."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.operators import INPUT, Operator
from pipeplan.core.words import UNSPLIT, WHOLE, LayerWords, Layout, Word
from pipeplan.costs.sharding.relayouts import PlannedLayer, Relayout
from pipeplan.frontend.operators.program import Pieces, Program, Role, Step
from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.operators.sources import View
from pipeplan_executor.sharding.mesh import calls
from pipeplan_executor.sharding.mesh.attention import attention, splits_tokens
from pipeplan_executor.sharding.mesh.copies import SharedCopy
from pipeplan_executor.sharding.mesh.moves import HeldTensor, MeshAxes, Move, divided
from pipeplan_executor.sharding.mesh.saving import Moves, Repeated
from pipeplan_executor.sharding.mesh.shapes import own_lengths, own_shape, shapes_of
from pipeplan_executor.sharding.mesh.weights import MeshWeight, mesh_weights
from pipeplan_executor.sharding.parts import mapped

Taken = Callable[[Tensor, Layout], Tensor]
"""Takes a view of a part of its source, which has a layout."""


@dataclass(frozen=True)
class Handle:
    """A tensor of a program that runs: a view of a source, or a constant, which every process has as a whole."""

    view: View | None = None
    take: Taken | None = None
    constant: Tensor | None = None


class MeshLayer:
    """The forward of a layer on a mesh.

    Parameters
    ----------
    program : Program
        For one shape of inputs, and one mode (training or evaluation).
    words : LayerWords
    axes : MeshAxes
    repeats : bool
        Whether what is moved for an operator with weights is moved again where the backward needs it, and not kept; not
        needed in layers that are recomputed.

    Attributes
    ----------
    weights : dict of str to MeshWeight
        How the parameters lie on the mesh, by their names in the layer.
    """

    def __init__(self, program: Program, words: LayerWords, axes: MeshAxes, repeats: bool = True) -> None:
        self.program, self.axes, self.repeats = program, axes, repeats
        self.shapes = shapes_of(program)
        self.plan = PlannedLayer(program.graph, words, len(axes.sizes))
        self.weights: dict[str, MeshWeight] = mesh_weights(program, self.plan, axes)
        self.of_operator: dict[str, list[MeshWeight]] = {}
        for weight in self.weights.values():
            self.of_operator.setdefault(weight.operator, []).append(weight)

    def __call__(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *inputs: Tensor
    ) -> list[Tensor]:
        """Return the outputs of the layer, as it holds them.

        Parameters
        ----------
        parameters : mapping of str to Tensor
            This process's parts (`weights`), by their names in the layer.
        buffers : mapping of str to Tensor
        inputs : Tensor
            As the layer gets them.
        """
        return _Run(self, parameters, buffers, inputs).outputs()


class _Run:
    """One forward of a layer."""

    def __init__(
        self,
        layer: MeshLayer,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
    ) -> None:
        self._layer, self._program, self._axes, self._plan = layer, layer.program, layer.axes, layer.plan
        self._device = inputs[0].device
        self._held: dict[str, HeldTensor] = {}
        self._copies: dict[str, SharedCopy] = {}
        self._parameters: dict[str, Tensor] = {}  # by the names of weights
        self._handles: dict[int, Handle] = {}
        self._passed: dict[str, Handle] = {}
        record, given = self._program.record, self._program.given
        for number, (tensor, part) in enumerate(zip(record.inputs, inputs, strict=True), 1):
            name = INPUT if number == 1 else f"{INPUT}#{number}"
            lengths = own_lengths(layer.shapes[name], self._plan.held(name), self._axes)
            self._held[name] = HeldTensor(part.reshape(lengths), self._move(name, self._plan.entering(name)))
            self._handles[id(tensor)] = self._root(given[id(tensor)])
        for local, parameter in record.parameters.items():
            view = given.get(id(parameter))
            if view is None:
                self._handles[id(parameter)] = Handle(constant=parameters[local])
            else:
                self._parameters[view.source.name] = parameters[local]
                self._handles[id(parameter)] = self._root(view)
        for local, buffer in record.buffers.items():
            self._handles.setdefault(id(buffer), Handle(constant=buffers[local]))

    def outputs(self) -> list[Tensor]:
        """Run all calls, and return the outputs; once.

        Handles refer to this forward, which then has no tensors that would stay until Python's collector runs.
        """
        enabled = torch.is_grad_enabled()
        for step in self._program.steps:
            with torch.set_grad_enabled(enabled and (step.has_gradient or step.passed is not None)):
                self._run(step)
        found = []
        for name, tensor in zip(self._program.graph.outputs, self._program.record.outputs, strict=True):
            handle = self._passed.get(name) or self._handle(tensor)
            assert handle.take is not None
            end = self._plan.leaving(name)
            found.append(handle.take(self._held[name].read(self._move(name, end)), end.target))
        for known in (self._held, self._copies, self._parameters, self._handles, self._passed):
            known.clear()
        return found

    def _run(self, step: Step) -> None:
        call = step.call
        if step.role is Role.OPERATOR:
            self._operate(step)
        elif call is not None and step.role is Role.CONSTANT:
            made = call.operation(*self._constants(call.args), **self._constants(call.kwargs))
            results = made if isinstance(made, tuple | list) else (made,)
            self._handles |= {id(t): Handle(constant=value) for t, value in zip(call.made, results, strict=True)}
        elif call is not None:
            parent = self._handle(call.given[0])
            for number, (tensor, view) in enumerate(zip(call.made, step.views, strict=True)):
                assert view is not None and parent.take is not None
                self._handles[id(tensor)] = Handle(view, partial(self._view, call, number, view, parent.take))

    def _handle(self, tensor: Tensor) -> Handle:
        """Return the handle of a recorded tensor; one that no call made is a constant itself."""
        return self._handles.get(id(tensor)) or Handle(constant=tensor)

    def _constants(self, value: Any) -> Any:
        """Return arguments with constants in place of recorded tensors; with tensors of their shape for others."""

        def constant(tensor: Tensor) -> Tensor:
            found = self._handle(tensor).constant
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device) if found is None else found

        return mapped(constant, value)

    def _move(self, name: str, how: Relayout) -> Move:
        return Move(how, self._layer.shapes[name], self._axes)

    def _root(self, view: View | None) -> Handle:
        assert view is not None
        return Handle(view, partial(self._source, view))

    def _source(self, view: View, part: Tensor, layout: Layout) -> Tensor:
        return part.reshape(own_shape(view, self._layer.shapes[view.source.name], layout, self._axes))

    def _view(self, call: Call, number: int, view: View, before: Taken, part: Tensor, layout: Layout) -> Tensor:
        shape = own_shape(view, self._layer.shapes[view.source.name], layout, self._axes)
        return calls.view(call, number, before(part, layout), shape)

    def _operate(self, step: Step) -> None:
        operator, view = self._plan.operators.get(step.operator), step.views[0]
        if operator is None or view is None:  # nothing that is returned depends on it
            return
        moves = Moves()
        operand = partial(self._operand, operator, step, self._bases(operator, moves))
        results: Sequence[Tensor]
        if step.call is None:
            assert step.passed is not None
            results = (operand(step.passed, self._word(operator)),)
        else:
            again = self._layer.repeats and self._plan.moves_again(operator)
            with moves.repeated() if again else nullcontext():
                first, word = self._first_row(operator, step.call), self._word(operator)
                own = partial(operand, word=word)
                if operator.attention is not None and splits_tokens(word):
                    results = attention(step.call, operand, self._axes, word)
                elif first is None:
                    results = calls.results(step.call, own, self._adds(operator))
                else:
                    results = calls.rows(step.call, own, first)
        how = self._plan.making(operator)
        lengths = own_lengths(self._layer.shapes[operator.name], how.source, self._axes)
        self._held[operator.name] = HeldTensor(results[0].reshape(lengths), self._move(operator.name, how))
        if step.call is None:
            self._passed[operator.name] = self._root(view)
        else:
            self._handles[id(step.call.made[0])] = self._root(view)
            whole = all(letter.loop == UNSPLIT for letter in self._word(operator))
            for tensor, value in zip(step.call.made[1:], results[1:], strict=False):
                self._handles[id(tensor)] = Handle(constant=value if whole else None)

    def _bases(self, operator: Operator, moves: Moves) -> dict[str, tuple[Tensor, Layout]]:
        """Return what an operator reads as it needs it, with the layouts."""
        found = {}
        for source in operator.reads:
            how, held = self._plan.reading(operator, source), self._held[source]
            move = self._move(source, how)
            if self._plan.copy(source, operator) is None:
                made, again = held.read(move), Repeated(partial(move.forward, held.part))
            else:
                copy = self._copy(source)
                made, again = held.read(move, copy.take()), copy.repeated(move)
            found[source] = moves.note(held.part, made, again), how.target
        for weight in self._layer.of_operator.get(operator.name, ()):
            part = self._parameters[weight.name]
            made = weight.gathered(part, self._axes)
            again = Repeated(partial(weight.whole, part.detach(), self._axes))
            found[weight.name] = moves.note(part, made, again), weight.needed
        return found

    def _copy(self, source: str) -> SharedCopy:
        """Return the copy of a tensor, which its readers share."""
        if source not in self._copies:
            how, held = self._plan.copying(source), self._held[source].part
            assert how is not None, "operators read it"
            readers = len(self._plan.copies[source].readers)
            self._copies[source] = SharedCopy(held, self._move(source, how), readers)
        return self._copies[source]

    def _operand(
        self, operator: Operator, step: Step, bases: Mapping[str, tuple[Tensor, Layout]], tensor: Tensor, word: Word
    ) -> Tensor:
        """Return the part that stands for a recorded tensor in a call of an operator, under its word."""
        handle, row = self._handle(tensor), tuple[str, ...]()
        if handle.take is None or handle.view is None:
            if handle.constant is None:
                raise ValueError(f"{operator.name} reads a further result of an operator that is split")
            part = handle.constant
        else:
            name = handle.view.source.name
            base, layout = bases.get(name) or (self._parameters[name], (WHOLE,) * len(self._axes.sizes))
            part, row = handle.take(base, layout), self._row(operator, name)
        for dimension, pieces in enumerate(step.operands.get(id(tensor), ())):
            part = _narrowed(part, dimension, pieces, word, {*operator.loops} - {*row}, self._axes)
        return part

    def _row(self, operator: Operator, source: str) -> tuple[str, ...]:
        """Return the loops of a tensor or weight that an operator reads."""
        if source in operator.reads:
            return operator.reads[source]
        return next((weight.loops for weight in operator.weights if weight.name == source), ())

    def _word(self, operator: Operator) -> Word:
        return self._plan.signature(operator).word

    def _adds(self, operator: Operator) -> bool:
        """Return whether this process is the first of those that make parts of a sum."""
        return not any(
            place and letter.loop != UNSPLIT and letter.loop not in operator.makes
            for place, letter in zip(self._axes.places, self._word(operator), strict=True)
        )

    def _first_row(self, operator: Operator, call: Call) -> int | None:
        """Return the first row that this process has of a table that is split by rows; None if it is not."""
        if call.operation.overloadpacket is not torch.ops.aten.embedding:
            return None
        for weight in self._layer.of_operator.get(operator.name, ()):
            cuts = [cut for cut in weight.cuts if cut.dimension == 0 and not cut.gathered]
            first, length = 0, weight.shape[0]
            for cut in cuts:
                length //= self._axes.sizes[cut.axis]
                first += length * self._axes.places[cut.axis]
            return first if cuts else None
        return None


def _narrowed(part: Tensor, dimension: int, pieces: Pieces, word: Word, loops: set[str], axes: MeshAxes) -> Tensor:
    """Return the part of a dimension on which this process works, of pieces with these loops; others are parts."""
    counts = [[axis for axis, letter in enumerate(word) if letter.loop == loop != UNSPLIT] for loop, _ in pieces]
    if not any(own and loop in loops for own, (loop, _) in zip(counts, pieces, strict=True)):
        return part
    lengths = []
    for own, (loop, length) in zip(counts, pieces, strict=True):
        for axis in () if loop in loops else own:
            length //= axes.sizes[axis]
        lengths.append(length)
    part = part.unflatten(dimension, lengths)
    for place, (own, (loop, _)) in enumerate(zip(counts, pieces, strict=True)):
        for axis in own if loop in loops else ():
            part = divided(part, dimension + place, axes.sizes[axis])[axes.places[axis]]
    return part.flatten(dimension, dimension + len(lengths) - 1)
