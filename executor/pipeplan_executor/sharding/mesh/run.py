"""`MeshLayer`: a layer's forward on a mesh, call by call; autograd makes its backward."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.operators import INPUT, TOKEN, Operator
from pipeplan.core.strategies import WHOLE, LayerStrategies, Placements, Strategy, splits
from pipeplan.costs.sharding.layer_redistributions import PlannedLayer, Redistribution
from pipeplan.costs.sharding.prices import class_axes
from pipeplan.frontend.capture.private import memory_of
from pipeplan.frontend.operators.program import Program, Role, Step
from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.split_backward.queue import WeightQueue
from pipeplan_executor.sharding.mesh import calls
from pipeplan_executor.sharding.mesh.attention import attention, splits_tokens
from pipeplan_executor.sharding.mesh.copies import SharedCopy
from pipeplan_executor.sharding.mesh.cross_entropy import in_cross_entropy
from pipeplan_executor.sharding.mesh.moves import HeldTensor, MeshAxes
from pipeplan_executor.sharding.mesh.planned import Handle, PlannedCalls
from pipeplan_executor.sharding.mesh.products import Part, is_product, product
from pipeplan_executor.sharding.mesh.saving import Base, Repeated, saving
from pipeplan_executor.sharding.mesh.tables import LayerTables
from pipeplan_executor.sharding.mesh.weights import MeshWeight, mesh_weights


class MeshLayer:
    """The forward of a layer on a mesh.

    Parameters
    ----------
    program : Program
        For one shape of inputs, and one mode (training or evaluation). With a loss, if that is split along classes.
    strategies : LayerStrategies
    axes : MeshAxes
    plan : PlannedLayer, optional
        The operators with these strategies.

    Attributes
    ----------
    strategies : LayerStrategies
    weights : dict of str to MeshWeight
        How the parameters lie on the mesh, by their names in the layer.
    steps, loss_steps : list of Step
        Of the layer, and of its loss.
    calls : PlannedCalls
    """

    def __init__(
        self, program: Program, strategies: LayerStrategies, axes: MeshAxes, plan: PlannedLayer | None = None
    ) -> None:
        self.program, self.strategies, self.axes = program, strategies, axes
        of_loss = {id(call) for call in program.record.calls[program.record.loss :]}
        self.steps = [step for step in program.steps if id(step.call) not in of_loss]
        self.loss_steps = [step for step in program.steps if id(step.call) in of_loss]
        self.plan = plan or PlannedLayer(program.graph, strategies, len(axes.sizes))
        self.weights: dict[str, MeshWeight] = mesh_weights(program, self.plan, axes)
        self.calls = PlannedCalls(program, self.plan, self.weights, axes)
        self.tables = None if axes.kept is None else LayerTables(program, axes.kept.tables)

    def __call__(
        self,
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, Tensor],
        *inputs: Tensor,
        queue: WeightQueue | None = None,
    ) -> list[Tensor]:
        """Return the outputs of the layer, as it holds them; for a loss what these are views of (see `outputs`).

        Parameters
        ----------
        parameters : mapping of str to Parameter
            This process's parts (`weights`), by their names in the layer.
        buffers : mapping of str to Tensor
        inputs : Tensor
            As the layer gets them.
        queue : WeightQueue, optional
            Takes weight gradients while it is open.
        """
        return _Run(self, inputs[0].device, queue).outputs(parameters, buffers, inputs)

    def loss(self, made: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Return the loss, which is whole, of what a call of the layer made."""
        return _Run(self, made[0].device).loss(made, targets)

    def outputs(self, made: Sequence[Tensor]) -> list[Tensor]:
        """Return the whole outputs of what a call of the layer made for its loss, without gradients."""
        return _Run(self, made[0].device).whole(made)


class _Run:
    """One forward of a layer, or of its loss: one of the public methods, once."""

    def __init__(self, layer: MeshLayer, device: torch.device, queue: WeightQueue | None = None) -> None:
        self._layer, self._program, self._axes, self._plan = layer, layer.program, layer.axes, layer.plan
        self._device, self._queue, self._calls = device, queue, layer.calls
        self._held: dict[str, HeldTensor] = {}
        self._given: dict[str, Base] = {}  # to the loss, by what made it
        self._copies: dict[str, SharedCopy] = {}
        self._parameters: dict[str, nn.Parameter] = {}  # by the names of weights
        self._handles: dict[int, Handle] = {}
        self._passed: dict[str, Handle] = {}

    def outputs(
        self, parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run all calls of the layer, and return the outputs."""
        with self._emptied():
            self._enter(parameters, buffers, inputs)
            self._run_all(self._layer.steps)
            return [*map(self._handed, self._program.record.returned)] if self._layer.loss_steps else self._ends()

    def loss(self, made: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Run the calls of the loss on what the layer made for it, and return the number."""
        with self._emptied():
            self._resume(made)
            pairs = zip(self._program.record.targets, targets, strict=True)
            self._handles |= {id(tensor): Handle(constant=value) for tensor, value in pairs}
            self._run_all(self._layer.loss_steps)
            (found,) = self._ends()
            return found

    def whole(self, made: Sequence[Tensor]) -> list[Tensor]:
        """Return the layer's outputs, whole, of what it made for the loss."""
        with self._emptied():
            self._resume(made)
            return [*map(self._whole, self._program.record.returned)]

    @contextmanager
    def _emptied(self) -> Iterator[None]:
        """Drop all tensors behind a forward, which handles refer to, so that Python's collector need not.

        Also where a recomputation ends early.
        """
        try:
            yield
        finally:
            for known in (self._held, self._given, self._copies, self._parameters, self._handles, self._passed):
                known.clear()

    def _enter(
        self, parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> None:
        """Take the tensors with which the layer begins."""
        record, given = self._program.record, self._program.given
        for number, (tensor, part) in enumerate(zip(record.inputs, inputs, strict=True), 1):
            name = INPUT if number == 1 else f"{INPUT}#{number}"
            part = calls.reshaped(part, self._calls.lengths(name, self._plan.held(name)))
            self._held[name] = HeldTensor(part, self._calls.move(name, self._plan.entering(name)))
            self._handles[id(tensor)] = self._calls.root(given[id(tensor)])
        for local, parameter in record.parameters.items():
            view = given.get(id(parameter))
            if view is None:
                self._handles[id(parameter)] = Handle(constant=parameters[local])
            else:
                self._parameters[view.source.name] = parameters[local]
                self._handles[id(parameter)] = self._calls.root(view)
        for local, buffer in record.buffers.items():
            self._handles.setdefault(id(buffer), Handle(constant=buffers[local]))
        if (tables := self._layer.tables) is not None:
            own = {id(buffer): buffers[local] for local, buffer in record.buffers.items()}
            made = tables.values(own, self._device, self._make)
            self._handles |= {name: Handle(constant=value) for name, value in made.items()}

    def _resume(self, made: Sequence[Tensor]) -> None:
        """Take what the layer made for the loss, and name its views anew."""
        record, given = self._program.record, self._program.given
        for tensor in (*record.inputs, *record.parameters.values()):
            if given.get(id(tensor)) is not None:
                self._handles[id(tensor)] = self._calls.root(given[id(tensor)])
        for step in self._layer.steps:
            if step.role is Role.OPERATOR and step.call is not None and step.operator in self._plan.operators:
                self._handles[id(step.call.made[0])] = self._calls.root(step.views[0])
            elif step.role is Role.VIEW:
                self._run(step)
        for tensor, part in zip(record.returned, made, strict=True):
            view = self._handle(tensor).view
            if view is None:
                self._handles[id(tensor)] = Handle(constant=part)
            else:
                placements = self._plan.for_loss(view.source.name).target
                self._given[view.source.name] = Base(part, placements, part.detach(), Repeated(Tensor.detach))

    def _run_all(self, steps: Sequence[Step]) -> None:
        enabled = torch.is_grad_enabled()
        for step in steps:
            without = enabled and not (step.has_gradient or step.passed is not None)
            with torch.no_grad() if without else nullcontext():
                self._run(step)

    def _handed(self, tensor: Tensor) -> Tensor:
        """Return what an output of the layer is a view of, as the loss needs that."""
        handle = self._handle(tensor)
        if handle.view is None:
            assert handle.constant is not None
            return handle.constant
        name = handle.view.source.name
        return self._held[name].read(self._calls.move(name, self._plan.for_loss(name)))

    def _whole(self, tensor: Tensor) -> Tensor:
        """Return an output of the layer of what the loss needs of it."""
        handle, whole = self._handle(tensor), (WHOLE,) * len(self._axes.sizes)
        if handle.view is None or handle.take is None:
            assert handle.constant is not None
            return handle.constant
        given = self._given[name := handle.view.source.name]
        return handle.take(
            self._calls.move(name, Redistribution(given.placements, whole, whole, whole)).forward(given.part), whole
        )

    def _ends(self) -> list[Tensor]:
        """Return what the program makes."""
        return [*map(self._output, self._program.graph.outputs, self._program.record.outputs)]

    def _output(self, name: str, tensor: Tensor) -> Tensor:
        handle, end = self._passed.get(name) or self._handle(tensor), self._plan.leaving(name)
        assert handle.take is not None
        return handle.take(self._held[name].read(self._calls.move(name, end)), end.target)

    def _run(self, step: Step) -> None:
        call = step.call
        if step.role is Role.OPERATOR:
            self._operate(step)
        elif call is not None and step.role is Role.CONSTANT:
            if self._layer.tables is None or id(step) not in self._layer.tables.ids:
                self._make(step)
        elif call is not None and (parent := self._handle(call.given[0])).take is not None:
            self._handles |= self._calls.views(step, parent.take)

    def _make(self, step: Step) -> Sequence[Tensor]:
        """Return the constants that a step makes."""
        call = step.call
        assert call is not None
        kwargs = dict(self._constants(call.kwargs))
        if "device" in kwargs:
            kwargs["device"] = self._device
        made = call.operation(*self._constants(call.args), **kwargs)
        results: Sequence[Tensor] = made if isinstance(made, tuple | list) else (made,)
        self._handles |= {id(t): Handle(constant=value) for t, value in zip(call.made, results, strict=True)}
        return results

    def _handle(self, tensor: Tensor) -> Handle:
        """Return the handle of a recorded tensor; one that no call made is a constant itself."""
        return self._handles.get(id(tensor)) or Handle(constant=tensor)

    def _constants(self, value: Any) -> Any:
        """Return arguments with constants in place of recorded tensors; for others tensors of their shape and strides.

        Random numbers are drawn in the order of memory.
        """

        def constant(tensor: Tensor) -> Tensor:
            found = self._handle(tensor).constant
            if found is not None:
                return found
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self._device)

        return calls.mapped(constant, value)

    def _operate(self, step: Step) -> None:
        operator, view = self._plan.operators.get(step.operator), step.views[0]
        if operator is None or view is None:  # nothing that is returned depends on it
            return
        bases = self._bases(operator)
        results: Sequence[Tensor]
        if step.call is None:
            assert step.passed is not None
            results = (self._operand(operator, step, bases, step.passed),)
        else:
            results = self._results(operator, step, step.call, bases)
        move, lengths = self._calls.making(operator.name)
        self._held[operator.name] = HeldTensor(calls.reshaped(results[0], lengths), move)
        if step.call is None:
            self._passed[operator.name] = self._calls.root(view)
        else:
            self._handles[id(step.call.made[0])] = self._calls.root(view)
            whole = not splits(self._calls.strategy(operator.name))
            for tensor, value in zip(step.call.made[1:], results[1:], strict=False):
                self._handles[id(tensor)] = Handle(constant=value if whole else None)

    def _results(self, operator: Operator, step: Step, call: Call, bases: Mapping[str, Base]) -> Sequence[Tensor]:
        """Return the results of the call of an operator."""
        strategy, first = self._calls.strategy(operator.name), self._calls.first_row(operator, call)
        adds, again = self._calls.adds(operator.name), self._plan.moves_again(operator)
        operand = partial(self._operand, operator, step, bases)
        if torch.is_grad_enabled() and is_product(call):
            parts = [self._part(operator, step, bases, again, tensor) for tensor in call.given]
            if any(part.parameter is not None for part in parts):
                return product(call, parts, first, adds, self._queue)
        with saving(bases.values()) if again else nullcontext():
            if operator.attention is not None and splits_tokens(strategy):
                return attention(call, operand, self._axes, strategy)
            if operator.name in self._program.graph.loss_names:
                return in_cross_entropy(call, operand, self._axes, class_axes(strategy))
            if first is not None:
                return calls.rows(call, operand, first)
            return calls.results(call, operand, adds)

    def _bases(self, operator: Operator) -> dict[str, Base]:
        """Return what an operator reads as it needs it."""
        found = {}
        for source in operator.reads:
            if source in self._given:
                found[source] = self._given[source]
                continue
            move, held = self._calls.reading(operator.name, source), self._held[source]
            part = held.part
            if self._plan.copy(source, operator) is None:
                made, again = held.read(move), Repeated(move.forward)
            else:
                copy = self._copy(source)
                taken, again = copy.take(part), copy.repeated(move)
                made = held.read(move, taken)
                if self._plan.copies[source].kept:
                    part, again = taken, Repeated(move.forward)
            found[source] = Base(made, move.how.target, part, again)
        for weight in self._calls.of_operator.get(operator.name, ()):
            part = self._parameters[weight.name]
            again = Repeated(partial(weight.whole, axes=self._axes))
            made = weight.gathered(part, self._axes, self._queue)
            found[weight.name] = Base(made, weight.needed, part.detach(), again)
        return found

    def _copy(self, source: str) -> SharedCopy:
        """Return the copy of a tensor, which its readers share."""
        if source not in self._copies:
            how = self._plan.copying(source)
            assert how is not None, "operators read it"
            move, readers = self._calls.move(source, how), len(self._plan.copies[source].readers)
            self._copies[source] = SharedCopy(move, readers, self._plan.copied_for_inputs(source))
        return self._copies[source]

    def _base(self, bases: Mapping[str, Base], name: str) -> Base:
        """Return a source as an operator needs it; parameters that operators before it have too are whole."""
        if name in bases:
            return bases[name]
        part = self._parameters[name]
        return Base(part, (WHOLE,) * len(self._axes.sizes), part.detach(), Repeated(Tensor.detach))

    def _operand(
        self,
        operator: Operator,
        step: Step,
        bases: Mapping[str, Base],
        tensor: Tensor,
        strategy: Strategy | None = None,
    ) -> Tensor:
        """Return the part that stands for a recorded tensor in a call of an operator, under its or another strategy."""
        strategy = strategy or self._calls.strategy(operator.name)
        handle = self._handle(tensor)
        if handle.view is not None:
            base = self._base(bases, handle.view.source.name)
            return self._taken(operator, step, tensor, handle, strategy, base.placements, base.part)
        if handle.constant is None:
            raise ValueError(f"{operator.name} reads a further result of an operator that is split")
        return self._calls.narrowed(operator, step, tensor, (), strategy, handle.constant)

    def _taken(
        self,
        operator: Operator,
        step: Step,
        tensor: Tensor,
        handle: Handle,
        strategy: Strategy,
        placements: Placements,
        base: Tensor,
    ) -> Tensor:
        """Return an operand of what the operator reads."""
        assert handle.take is not None
        assert handle.view is not None
        row = self._row(operator, handle.view.source.name)
        return self._calls.narrowed(operator, step, tensor, row, strategy, handle.take(base, placements))

    def _part(self, operator: Operator, step: Step, bases: Mapping[str, Base], again: bool, tensor: Tensor) -> Part:
        """Return an operand of a product, and what is kept of it: parts as they are held, or itself."""
        handle = self._handle(tensor)
        value = self._operand(operator, step, bases, tensor)
        if handle.view is None:
            return Part(value, value.detach())
        base, parameter = self._base(bases, handle.view.source.name), self._parameters.get(handle.view.source.name)
        is_made = base.is_moved and again if parameter is None else memory_of(value) != memory_of(base.held)
        if not is_made:
            return Part(value, value.detach(), None, parameter)
        repeated = base.again  # not the base, which has what was moved
        repeated.keep()
        strategy = self._calls.strategy(operator.name)
        take = partial(self._taken, operator, step, tensor, handle, strategy, base.placements)
        return Part(value, base.held, lambda held: take(repeated.again(held)), parameter, repeated.begin)

    def _row(self, operator: Operator, source: str) -> tuple[str, ...]:
        """Return the loops of a tensor or weight that an operator reads."""
        if source in operator.reads:
            return operator.reads[source]
        row: tuple[str, ...] = next((weight.loops for weight in operator.weights if weight.name == source), ())
        return row if self._axes.cut is None else tuple("" if loop == TOKEN else loop for loop in row)
