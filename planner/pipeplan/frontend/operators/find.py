"""`find_operators`: the operators of all layers of a model, equal ones once."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pipeplan.core.operators import OperatorGraph
from pipeplan.core.weight_names import weight_name
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.follow import NamedWeight, operators_of
from pipeplan.frontend.operators.record import record
from pipeplan.frontend.parameters import shared_parameters


@dataclass(frozen=True)
class FoundOperators:
    """The operators of a model's layers.

    Attributes
    ----------
    names : tuple of str
        For each layer the name of its graph, which is that of the first such layer; empty where none was found.
    graphs : mapping
    """

    names: tuple[str, ...]
    graphs: Mapping[str, OperatorGraph]


def find_operators(
    module: nn.Module,
    sequence: LayerSequence,
    inputs: Sequence[Sequence[Tensor]],
    samples: int,
    context: Callable[[], AbstractContextManager[object]],
    loss: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
) -> FoundOperators:
    """Find the operators of every layer.

    Layers that cannot run without values have none, nor have those with tensors that cannot be followed.

    Parameters
    ----------
    module : torch.nn.Module
        The unsplit model.
    inputs : sequence of sequence of Tensor
        Those of each layer, for ``samples`` samples; values are not read.
    context : callable
        Context of forward and loss, for mixed precision.
    loss : callable, optional
        ``loss(outputs of the last layer, targets)``.
    """
    weights = named_weights(module, sequence)
    names: list[str] = []
    graphs: dict[str, OperatorGraph] = {}
    known: dict[str, str] = {}
    for number, layer in enumerate(sequence.layers):
        is_last = number == len(sequence.layers) - 1
        try:
            found = record(layer, inputs[number], context, loss if is_last else None, targets)
            graph = operators_of(found, weights[number], samples)
        except Exception:  # a layer may fail in any way without values
            names.append("")
            continue
        name = known.setdefault(repr(graph), sequence.names[number])
        graphs.setdefault(name, graph)
        names.append(name)
    return FoundOperators(tuple(names), graphs)


def named_weights(module: nn.Module, sequence: LayerSequence) -> list[dict[str, NamedWeight]]:
    """Return the trainable parameters of each layer by their names in it."""
    known = dict(module.named_parameters(remove_duplicate=False))
    shared = {id(known[holders[0][1]]) for holders in shared_parameters(module, sequence.parameters)}
    return [
        {
            local: NamedWeight(weight_name(layer, full), id(known[full]) in shared)
            for local, full in names.items()
            if full in known and known[full].requires_grad
        }
        for layer, names in zip(sequence.names, sequence.parameters, strict=True)
    ]
