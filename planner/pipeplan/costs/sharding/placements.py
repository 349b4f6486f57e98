"""Placements of the tensors of an operator that is split along one of its loops, along one axis of a mesh.

A tensor is whole, split along one of its dimensions, or on each device a part of a sum. With the loops of an operator
(`pipeplan.core.operators`) the loop that is split fixes the placements of all its tensors, and of their gradients::

    linear map                    reads    weight   makes    gradient of     returned for
    [token, h] -> [token, f]                                 the output      the input
    whole                         whole    whole    whole    whole           whole
    split along f (columns)       whole    axis 0   axis 1   axis 1          a part of a sum
    split along h (rows)          axis 1   axis 1   a part   whole           axis 1
    split along the tokens        axis 0   whole    axis 0   axis 0          axis 0

A weight without the loop is whole, and the devices sum its gradient once per step.
"""

from collections.abc import Sequence

from pipeplan.core.operators import TOKEN, Operator, OperatorGraph
from pipeplan.core.strategies import PARTIAL, WHOLE, Placements


def read_placement(operator: Operator, loop: str, source: str) -> int:
    """Return the placement in which an operator needs what it reads of ``source``."""
    return axis_of(operator.reads[source], loop)


def made_placement(operator: Operator, loop: str) -> int:
    """Return the placement of what an operator makes."""
    return PARTIAL if loop and loop not in operator.makes else axis_of(operator.makes, loop)


def gradient_placement(operator: Operator, loop: str) -> int:
    """Return the placement in which an operator needs the gradient of what it makes."""
    return axis_of(operator.makes, loop)


def returned_placement(operator: Operator, loop: str, source: str) -> int:
    """Return the placement of the gradient that an operator returns for what it reads of ``source``."""
    axes = operator.reads[source]
    return PARTIAL if loop and loop not in axes else axis_of(axes, loop)


def axis_of(axes: tuple[str, ...], loop: str) -> int:
    """Return which axis of a tensor a loop runs along; `WHOLE` if none, or without a loop."""
    return axes.index(loop) if loop and loop in axes else WHOLE


def token_axis(graph: OperatorGraph, name: str) -> int:
    """Return the axis of a tensor's tokens; `WHOLE` if it has none, or is not read as one that has.

    ``name`` is that of the operator that makes it, or of the layer's input.
    """
    rows = {each.reads[name] for each in graph.operators if name in each.reads}
    rows |= {each.makes for each in graph.operators if each.name == name}
    axes = {axis_of(row, TOKEN) for row in rows}
    return axes.pop() if len(axes) == 1 else WHOLE


def stream(graph: OperatorGraph, names: Sequence[str]) -> str:
    """Return which of a layer's inputs or outputs may be split along tokens; empty if none may.

    It is the only one, or the only one with a gradient; masks and positions that pass beside it are whole.
    """
    own = [name for name in names if len(names) == 1 or name not in graph.without_gradient]
    return own[0] if len(own) == 1 else ""


def handed_over(before: OperatorGraph, after: OperatorGraph) -> tuple[str, str] | None:
    """Return the names that a layer and the next one have for the tensor between them that may be split.

    None if there is none, or one of the layers passes it on.
    """
    made, read = stream(before, before.outputs), stream(after, tuple(after.inputs))
    if not made or not read or len(before.outputs) != len(after.inputs):
        return None
    alike = before.outputs.index(made) == tuple(after.inputs).index(read)
    return (made, read) if alike and made not in before.inputs and read not in after.outputs else None


def ends_of(placements: Placements, passes: Sequence[bool], i: int) -> tuple[Placements, Placements]:
    """Return the placements of what a layer reads and makes, if the outputs of some have these; others are whole."""
    whole = (WHOLE,) * len(placements)
    return placements if i and passes[i - 1] else whole, placements if passes[i] else whole
