"""Operators of a layer that runs on one slice of a sequence after the other: which of them run on the slice's tokens.

::

    token numbers ─▶ embedding ─▶ … ─▶ attention ─▶ …        on the slice's tokens, attention with the keys before them
    positions, masks, rotary tables                          whole, and narrowed where one of those reads them

Whatever reads a weight along tokens, or what is made on slices, runs on slices. All of these must treat tokens alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from pipeplan.core.operators import INPUT, TOKEN, Operator, OperatorGraph
from pipeplan.core.strategies import UNSPLIT, WHOLE, AxisStrategy, LayerStrategies, Placements, Signature
from pipeplan.costs.sharding.layer_redistributions import PlannedLayer
from pipeplan.costs.sharding.placements import axis_of
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.operators.program import Program, Role
from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.operators.sources import View
from pipeplan_executor.sharding.kernels import arguments_of, options_of

_APART = ("rms norm",)
"""Operators that treat tokens alike, and of which teams gather all tokens."""


class TokensMixedError(Exception):
    """An operator needs other tokens than its own."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.operator = operator


class SlicedLayer(PlannedLayer):
    """A layer's operators with their strategies, the last axis of which is that of slices.

    Parameters
    ----------
    axes : int
        Number of the mesh's other axes.
    tokens : mapping of str to int
        For inputs and operators the dimension that slices divide, or `WHOLE`.
    """

    def __init__(self, graph: OperatorGraph, strategies: LayerStrategies, axes: int, tokens: Mapping[str, int]) -> None:
        super().__init__(graph, strategies, axes)
        self._tokens = tokens

    def signature(self, operator: Operator) -> Signature:
        """Return the strategy of an operator, and the placements of what it makes."""
        name = operator.name
        found, cut = self._strategies.operators.get(name, self._alone), self._tokens[name]
        held = super().end(name) if name in self.graph.whole else found.held
        return Signature((*found.strategy, AxisStrategy(UNSPLIT if cut == WHOLE else TOKEN)), (*held, cut))

    def end(self, name: str) -> Placements:
        """Return the placements of an input or output of the layer."""
        return (*super().end(name), self._tokens[name])

    def summed(self, name: str, default: Placements) -> Placements:
        """Return the placements in which the gradient of a tensor is summed up."""
        known = self._strategies.sums.get(name, default)
        return known if len(known) > len(self._whole) else (*known, self._tokens[name])

    def copy(self, source: str, operator: Operator) -> Placements | None:
        """Return the placements of the copy of a tensor that an operator reads; None if it reads what is held."""
        found = super().copy(source, operator)
        return None if found is None else (*found, self._tokens[source])


@dataclass
class SlicedFlow:
    """How sequences are cut, and where the tokens are.

    Attributes
    ----------
    tokens : tuple of int
        Of each slice.
    axes : list of tuple
        For the inputs of the first layer, then for the outputs of each layer, the axis of tokens of each tensor that
        comes in slices.
    loss : callable or None
        ``loss(outputs, targets, number)``: what a slice of the outputs adds to the loss.
    """

    tokens: tuple[int, ...]
    axes: list[tuple[int | None, ...]]
    loss: Callable[[Tensors, Batch, int], Tensor] | None = None
    _programs: dict[tuple[str, bool], Program] = field(default_factory=dict)

    def program(self, name: str, make: Callable[..., Program], number: int, mode: bool, _: Batch = ()) -> Program:
        """Return a layer in training or evaluation, the same for all slices; ``number``: of the layer."""
        if (name, mode) not in self._programs:
            self._programs[name, mode] = sliced_program(make(mode, tokens=self.axes[number]))
        return self._programs[name, mode]


def sliced_program(found: Program) -> Program:
    """Return a program whose operators have the loop over tokens wherever they may run on a slice."""

    def changed(each: Operator) -> Operator:
        rows, call = (each.makes, *each.reads.values()), call_of(found, each.name)
        if each.kind not in _APART or call is None or len(call.args[1]) > 1:
            return each
        if not all(row.count(TOKEN) == 1 for row in rows):
            return each
        view = next(step.views[0] for step in found.steps if step.call is call)
        assert view is not None
        return replace(each, loops={**each.loops, TOKEN: view.source.sizes[each.makes.index(TOKEN)]})

    return replace(found, graph=replace(found.graph, operators=tuple(map(changed, found.graph.operators))))


def token_dimensions(program: Program, inputs: Sequence[int | None]) -> dict[str, int]:
    """Return the dimension that slices divide of every input and operator of a layer, or `WHOLE`.

    Parameters
    ----------
    inputs : sequence of int or None
        The axis of tokens of each input that comes in slices.

    Raises
    ------
    TokensMixedError
        If an operator needs other tokens.
    """
    graph, found = program.graph, dict[str, int]()
    for number, (name, tensor, axis) in enumerate(zip(graph.inputs, program.record.inputs, inputs, strict=True)):
        assert name.startswith(INPUT) and (number == 0 or name != INPUT)
        view = program.given[id(tensor)]
        found[name] = WHOLE if axis is None or view is None else _dimension(view, axis)
    for each in graph.operators:
        cut = {source for source in each.reads if found[source] != WHOLE}
        if TOKEN in each.loops and (cut or each.weights):
            looks_ahead = each.attention is not None and not each.attention.causal and not _has_mask(program, each)
            needed = {source: axis_of(each.reads[source], TOKEN) for source in cut}
            if looks_ahead or any(needed[source] != found[source] for source in cut):
                raise TokensMixedError(each.name)
            found[each.name] = axis_of(each.makes, TOKEN)
        elif cut:
            raise TokensMixedError(each.name)
        else:
            found[each.name] = WHOLE
    return found


def _dimension(view: View, axis: int) -> int:
    (factor,) = view.axes[axis]
    assert factor.axis is not None
    return factor.axis


def output_axes(program: Program, tokens: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return the axis of tokens of each output of a layer that leaves it in slices.

    Raises
    ------
    TokensMixedError
        If tokens are no axis of an output by themselves.
    """
    views = dict(program.given)
    for step in program.steps:
        if step.call is not None:
            views |= {id(each): view for each, view in zip(step.call.made, step.views, strict=False)}
    passed = {step.operator: step.views[0] for step in program.steps if step.role is Role.OPERATOR and not step.call}
    rows = zip(program.graph.outputs, program.record.outputs, strict=True)
    return tuple(_output_axis(name, passed.get(name) or views.get(id(tensor)), tensor, tokens) for name, tensor in rows)


def _output_axis(name: str, view: View | None, tensor: Tensor, tokens: Mapping[str, int]) -> int | None:
    if tokens[name] == WHOLE:
        return None
    for number, axis in enumerate(view.axes if view is not None else ()):
        if len(axis) == 1 and axis[0].axis == tokens[name] and axis[0].size == tensor.shape[number]:
            return number
    raise TokensMixedError(name)


def _has_mask(program: Program, attention: Operator) -> bool:
    """Return whether an attention has a mask, which is looked at when it runs."""
    call = call_of(program, attention.name)
    return call is not None and options_of(arguments_of(call.operation, call.args, call.kwargs)).mask is not None


def call_of(program: Program, operator: str) -> Call | None:
    """Return the call of an operator; None if it only passes a tensor on."""
    return next((step.call for step in program.steps if step.role is Role.OPERATOR and step.operator == operator), None)
