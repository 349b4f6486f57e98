"""One graph for training and evaluation, joined from two captures that differ in flags and training-only operations.

::

    training      dropout(x, 0.1, True)     add_(batches, 1)   batch_norm(…, True, …)
    evaluation    dropout(x, 0.1, False)                       batch_norm(…, False, …)
    together      dropout(x, 0.1, either)   when training …    batch_norm(…, either, …)
"""

from dataclasses import dataclass
from typing import Any

from torch import fx

from pipeplan.core.errors import InputError
from pipeplan.frontend.capture.graph.inplace import writes_buffer
from pipeplan.frontend.capture.private import pytree

TRAINING_ONLY = "training only"
"""Key in the meta of nodes that exist in training only."""


@dataclass(frozen=True)
class Either:
    """A constant argument that has one value in training and another in evaluation."""

    training: Any
    evaluation: Any


def join(training: fx.Graph, evaluation: fx.Graph) -> dict[fx.Node, dict[str, Any]] | None:
    """Arguments of the nodes whose arguments differ between training and evaluation; None if more differs.

    Returns
    -------
    dict or None
        By node, its arguments by name, `Either` for those that differ. Training-only nodes are marked in their meta.
    """
    theirs = list(evaluation.nodes)
    place, same = 0, dict[fx.Node, fx.Node]()  # same: by evaluation node, the training node
    changed: dict[fx.Node, dict[str, Any]] = {}
    attributes = {node.target: node for node in training.nodes if node.op == "get_attr"}
    # walk both graphs in order; a training node without a counterpart may only be a write into a buffer
    for node in training.nodes:
        if node.op == "get_attr":
            continue
        while place < len(theirs) and theirs[place].op == "get_attr":
            same[theirs[place]] = attributes.get(theirs[place].target, theirs[place])
            place += 1
        other = theirs[place] if place < len(theirs) else None
        found = _differences(node, other, same) if other is not None else None
        if found is None and writes_buffer(node) and not node.users:
            node.meta[TRAINING_ONLY] = True
            continue
        if found is None or other is None:
            return None
        if found:
            changed[node] = found
        same[other] = node
        place += 1
    return changed if place == len(theirs) else None


def _differences(ours: fx.Node, theirs: fx.Node, same: dict[fx.Node, fx.Node]) -> dict[str, Any] | None:
    """All arguments by name, if some constant differs; empty if none does; None if the operations differ."""
    if ours.op != theirs.op or (ours.op == "call_function" and ours.target is not theirs.target):
        return None
    mine, other = arguments(ours), arguments(theirs)
    if mine.keys() != other.keys():
        return None
    differ = False
    merged = {}
    for name, value in mine.items():
        leaves, structure = pytree.tree_flatten(value)
        others, other_structure = pytree.tree_flatten(other[name])
        if structure != other_structure:
            return None
        row = []
        for a, b in zip(leaves, others, strict=True):
            b = same.get(b) if isinstance(b, fx.Node) else b
            if isinstance(a, fx.Node) or isinstance(b, fx.Node):
                if a is not b:
                    return None
            elif type(a) is not type(b) or a != b:
                if not isinstance(a, bool | int | float) or not isinstance(b, bool | int | float):
                    return None
                a, differ = Either(a, b), True
            row.append(a)
        merged[name] = pytree.tree_unflatten(row, structure)
    return merged if differ else {}


def arguments(node: fx.Node) -> dict[str, Any]:
    """A node's arguments by name, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(number): value for number, value in enumerate(node.args)} | dict(node.kwargs)
    found = {}
    for number, argument in enumerate(schema.arguments):
        if number < len(node.args):
            found[argument.name] = node.args[number]
        else:
            found[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return found


def pick(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """The argument for the layer's mode."""
    return in_training if training else in_evaluation


def when(training: bool, operation: Any, *args: Any, **kwargs: Any) -> None:
    """Call the operation in training only."""
    if training:
        operation(*args, **kwargs)


def only_as_captured(training: bool, captured: bool, name: str) -> None:
    """Refuse the mode that was not captured.

    Raises
    ------
    InputError
        If the layer is in it.
    """
    if training != captured:
        known, other = ("training", "evaluation") if captured else ("evaluation", "training")
        raise InputError(
            f"{name} was captured for {known} only; for {other} the model computes something else, beyond dropout and "
            f"batch statistics, or was not captured (both_modes=False): use the unsplit model for {other}"
        )
