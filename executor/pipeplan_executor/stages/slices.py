"""`sliced_flow`: the axes of tokens in all tensors of a model that can run on one slice after the other.

::

    token numbers, whole ─▶ embedding ─▶ [sample, token, h] ─▶ attention ─▶ [sample, head, token, h / head] ─▶ …
                            slice k of it                      keys of slices 0 … k

Attention must be causal. All other operators treat tokens alike, or the model is refused with the operator's line.
"""

import inspect
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor, fx, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.capture.graph.gradients import place_in
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import FakeTensorMode, TorchDispatchMode, fake, on_fake
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.program import Program
from pipeplan_executor.sharding.mesh.programs import program
from pipeplan_executor.sharding.mesh.sliced_layer import (
    SlicedFlow,
    TokensMixedError,
    call_of,
    output_axes,
    token_dimensions,
)
from pipeplan_executor.stages.sliced_loss import SlicedLoss

Context = Callable[[], AbstractContextManager[object]]


def sliced_flow(
    plan: Plan,
    module: nn.Module,
    sequence: LayerSequence,
    flow: Sequence[Tensors],
    loss: Callable[[Tensors, Batch], Tensor],
    targets: Batch,
    context: Context,
) -> SlicedFlow | None:
    """Return where the tokens of a model are; None if the plan leaves sequences whole.

    Parameters
    ----------
    module : torch.nn.Module
        The unsplit model on the meta device.
    flow : sequence of Tensors
        The tensors between its layers.
    loss, targets
        ``loss(outputs, targets)``, of the last of them.

    Raises
    ------
    PlanError
        If the model or its loss cannot run like that.
    """
    parts = plan.schedule.slices
    if parts == 1 and not plan.slices:
        return None
    if parts != len(plan.slices) or min(plan.slices) < 1:
        raise PlanError(f"the schedule has {parts} slices of each sequence, and the plan names tokens of {plan.slices}")
    if plan.sharded:
        raise PlanError(f"level {plan.zero} of ZeRO and slices of sequences do not run together; plan with --zero 0,1")
    if plan.staleness:
        raise PlanError("staleness and slices of sequences do not run together; plan without one of them")
    if len(set(plan.teams)) > 1:
        raise PlanError(
            "teams of unlike sizes and slices of sequences do not run together; plan without --unlike-teams"
        )
    found = flow_in_slices(plan.slices, module, sequence, flow, context)
    found.loss = SlicedLoss(loss, flow[-1], targets, found.axes[-1], plan.slices, context)
    return found


def flow_in_slices(
    tokens: tuple[int, ...],
    module: nn.Module,
    sequence: LayerSequence,
    flow: Sequence[Tensors],
    context: Context,
) -> SlicedFlow:
    """Return where the tokens of a model are whose sequences are cut into slices of so many, without its loss.

    The parameters are those of `sliced_flow`, of a module on any device.

    Raises
    ------
    PlanError
        If the model cannot run like that.
    """
    found = SlicedFlow(tokens, [(None,) * len(flow[0])])
    weights = named_weights(module, sequence)
    for number, (name, layer) in enumerate(zip(sequence.names, sequence.layers, strict=True)):
        make = partial(program, name, layer, flow[number], weights[number], context)
        made = found.program(name, make, number, True)
        try:
            axes = output_axes(made, token_dimensions(made, found.axes[number]))
        except TokensMixedError as error:
            where = _line(made, error.operator, layer, flow[number], context)
            raise PlanError(
                f"{error.operator!r} in layer {name}{where} needs other tokens than its own, or is not known to treat "
                "tokens alike, so sequences cannot be cut into slices. Causal attention must be "
                "scaled_dot_product_attention without dropout; plan without --slices for any other model"
            ) from error
        _check(name, axes, flow[number + 1], sum(tokens))
        found.axes.append(axes)
    return found


def _check(name: str, axes: Sequence[int | None], made: Sequence[Tensor], tokens: int) -> None:
    for axis, tensor in zip(axes, made, strict=True):
        if axis is None and tensor.requires_grad:
            raise PlanError(
                f"layer {name} returns a tensor of shape {tuple(tensor.shape)} that has no axis of tokens, so "
                "sequences cannot be cut into slices; plan without --slices"
            )
        if axis is not None and tensor.shape[axis] != tokens:
            raise PlanError(
                f"the plan cuts sequences of {tokens} tokens, and those of layer {name} have {tensor.shape[axis]}; "
                "solve again for this model"
            )


def _line(made: Program, operator: str, layer: nn.Module, given: Sequence[Tensor], context: Context) -> str:
    """Return file and line of an operator's call, in brackets, as far as they are known."""
    call = call_of(made, operator)
    number = next((n for n, each in enumerate(made.record.calls) if each is call), None)
    if number is None:
        return ""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    blank = on_fake(layer, mode, "cpu")
    inputs = [fake(each, mode, "cpu").requires_grad_(each.requires_grad) for each in given]
    found = _Found(number, len(inspect.stack()))
    with mode, found, context():
        blank(*inputs)
    return found.place


class _Found(TorchDispatchMode):
    """Mode that notes where a call was made, by its number among those that make tensors.

    ``depth``: of the stack outside. Captured graphs know the lines from which they were made.
    """

    def __init__(self, number: int, depth: int) -> None:
        super().__init__()
        self._left, self._depth, self.place = number, depth, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        rows = result if isinstance(result, tuple | list) else (result,)
        if any(isinstance(each, Tensor) for each in rows):
            if self._left == 0:
                own = [frame for frame, _ in traceback.walk_stack(None)][: -self._depth or None]
                lines = map(_captured_line, own)
                self.place = next((line for line in lines if line), "") or place_in(
                    "".join(traceback.format_stack()[self._depth : -1])
                )
            self._left -= 1
        return result


def _captured_line(frame: FrameType) -> str:
    """Return the line from which the operation of a captured graph was made that a frame runs; empty for others."""
    graph = frame.f_locals.get("self")
    if not isinstance(graph, fx.GraphModule) or not frame.f_code.co_filename.startswith("<"):
        return ""
    number = graph._lineno_map.get(frame.f_lineno - frame.f_code.co_firstlineno) if graph._lineno_map else None
    node = None if number is None else list(graph.graph.nodes)[number]
    return place_in(node.meta.get("stack_trace")) if node is not None else ""
