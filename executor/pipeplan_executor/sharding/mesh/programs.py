"""Forwards of layers as programs: their calls, and the operators that these are."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.costs.sharding.batches import by_samples
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors, as_tuple
from pipeplan.frontend.operators.follow import NamedWeight, UnfollowedError, program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record

Loss = Callable[[Tensors, Batch], Tensor]
Mode = bool
"""True in training, false in evaluation: the two may call other operations."""


def program(
    name: str,
    layer: nn.Module,
    given: Sequence[Tensor],
    weights: Mapping[str, NamedWeight],
    context: Callable[[], AbstractContextManager[object]],
    mode: Mode,
    targets: Batch = (),
    loss: Loss | None = None,
    tokens: Sequence[int | None] = (),
) -> Program:
    """Return a layer's forward in a mode as a program, with its loss if there is one.

    ``tokens``: the axis of tokens of each input, where that is known already.

    Raises
    ------
    PlanError
        If its operators cannot be followed.
    """

    def compared(returned: Any, wanted: Batch) -> Tensor:
        assert loss is not None
        try:
            return loss(as_tuple(returned, name), wanted)
        except Exception as error:  # a loss may fail in any way without values
            raise PlanError(
                f"the plan splits the loss behind {name!r} along its classes, and it cannot be followed without "
                f"values: {error}. Solve with --no-vocabulary-parallel"
            ) from error

    before = {part: part.training for part in layer.modules()}
    layer.train(mode)
    try:
        inputs = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given)
        own = record(layer, inputs, context, None if loss is None else compared, targets)
        found = program_of(own, weights, samples := given[0].shape[0], tokens)
        return replace(found, graph=by_samples(found.graph, samples))
    except UnfollowedError as error:
        raise PlanError(f"the operators of a layer cannot be followed, as the plan needs it: {error}") from error
    finally:
        for part, training in before.items():
            part.training = training
