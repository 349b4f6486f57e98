"""Classification of a graph's nodes by dependencies, which decides what may pass a cut and what is computed again.

==========  ==========================================  ======================================
sort        depends on                                  behind a cut
==========  ==========================================  ======================================
HELD        nothing: a parameter, a buffer              held by the layers that use it
CONSTANT    constants and buffers that never change     computed once in each process, and kept
BATCH       the batch, and constants                    sent, or computed again from sent tensors
VIEW        one tensor of work, whose memory it shares  sent, or made again from that tensor
WORK        parameters, random numbers, or more         sent
==========  ==========================================  ======================================
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeplan.frontend.capture.graph.export import WITHIN
from pipeplan.frontend.capture.graph.inplace import Pin, writes, written
from pipeplan.frontend.capture.private import OpOverload, memory_of
from pipeplan.frontend.parameters import bytes_of


class Sort(Enum):
    """Class of a node; see the table above."""

    HELD = "held"
    CONSTANT = "constant"
    BATCH = "batch"
    VIEW = "view"
    WORK = "work"


_VIEWS = frozenset(
    [
        "aten::alias",
        "aten::expand",
        "aten::flatten",
        "aten::movedim",
        "aten::narrow",
        "aten::permute",
        "aten::reshape",
        "aten::select",
        "aten::slice",
        "aten::squeeze",
        "aten::t",
        "aten::to",
        "aten::transpose",
        "aten::unflatten",
        "aten::unsqueeze",
        "aten::view",
    ]
)


@dataclass(frozen=True)
class Sorted:
    """The nodes of a graph by class, and its units of work.

    Attributes
    ----------
    sort : mapping
        Class of every node except the output.
    units : sequence of tuple
        Work in order: an operation, and the items taken from its results.
    unit : mapping
        Number of the unit of each node that belongs to one.
    """

    sort: Mapping[fx.Node, Sort]
    units: Sequence[tuple[fx.Node, ...]]
    unit: Mapping[fx.Node, int]

    def parents(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Nodes from which a node is computed again; none if it is never computed again."""
        if self.sort[node] not in (Sort.VIEW, Sort.BATCH):
            return ()
        return tuple(p for p in node.all_input_nodes if self.sort[p] not in (Sort.CONSTANT, Sort.HELD))


def sort_nodes(graph: fx.Graph, tensors: Mapping[str, Tensor], pins: Sequence[Pin]) -> Sorted:
    """Classify every node.

    Parameters
    ----------
    tensors : mapping
        Parameters and buffers by the names that ``get_attr`` nodes have; others are constants.
    pins : sequence of Pin
        Nodes that must be work, because a later node writes into them.
    """
    changing = {tensor.target for node in graph.nodes for tensor in written(node)}
    changing |= {name for node in graph.nodes for name in _statistics(node)}
    pinned = {node for pin in pins for node in (pin.first, pin.write)}
    sort: dict[fx.Node, Sort] = {}
    units: list[list[fx.Node]] = []
    unit: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        sort[node] = _sort(node, sort, tensors, changing) if node not in pinned else _pinned(node)
        if sort[node] is Sort.WORK:
            producer = node.args[0] if node.target is operator.getitem else None
            if isinstance(producer, fx.Node) and producer in unit:
                unit[node] = unit[producer]
                units[unit[node]].append(node)
            else:
                unit[node] = len(units)
                units.append([node])
    return Sorted(sort, [tuple(row) for row in units], unit)


def _pinned(node: fx.Node) -> Sort:
    return {"placeholder": Sort.BATCH, "get_attr": Sort.HELD}.get(node.op, Sort.WORK)


def _sort(node: fx.Node, sort: Mapping[fx.Node, Sort], tensors: Mapping[str, Tensor], changing: set[Any]) -> Sort:
    if node.op == "placeholder":
        return Sort.BATCH
    if node.op == "get_attr":
        tensor = tensors.get(node.target)
        lasting = tensor is not None and (isinstance(tensor, nn.Parameter) or node.target in changing)
        return Sort.HELD if lasting else Sort.CONSTANT
    given = {sort[parent] for parent in node.all_input_nodes}
    if node.target is operator.getitem:
        return Sort.WORK if given & {Sort.WORK, Sort.VIEW} else sort[node.args[0]]
    if not isinstance(node.target, OpOverload) or not _repeatable(node):
        return Sort.WORK
    if given <= {Sort.CONSTANT}:
        return Sort.CONSTANT
    if given <= {Sort.CONSTANT, Sort.BATCH}:
        return Sort.BATCH
    if len(node.all_input_nodes) == 1 and given <= {Sort.WORK, Sort.VIEW} and _views(node):
        return Sort.VIEW
    return Sort.WORK


def _repeatable(node: fx.Node) -> bool:
    """True if computing the node again elsewhere gives the same value."""
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    lowered = any(context[0] == "autocast" and context[2] for context in node.meta[WITHIN])
    return not random and not lowered and not writes(node)


def _views(node: fx.Node) -> bool:
    """True if the node's value shares its argument's memory."""
    value, given = node.meta["val"], node.all_input_nodes[0].meta["val"]
    if node.target._schema.name not in _VIEWS or node.meta[WITHIN]:
        return False
    return bool(isinstance(value, Tensor) and isinstance(given, Tensor) and memory_of(value) == memory_of(given))


_STATISTICS = {"aten::batch_norm": (3, 4), "aten::native_batch_norm": (3, 4), "aten::instance_norm": (3, 4)}
"""Arguments that an operation updates although its schema does not declare it."""


def _statistics(node: fx.Node) -> tuple[str, ...]:
    places = _STATISTICS.get(getattr(getattr(node.target, "_schema", None), "name", ""), ())
    return tuple(node.args[p].target for p in places if isinstance(node.args[p], fx.Node))


def touches_state(node: fx.Node) -> tuple[str, ...]:
    """Names of the buffers that the node updates."""
    return (*(str(buffer.target) for buffer in written(node)), *_statistics(node))


def size_of(node: fx.Node) -> int | None:
    """Bytes of a node's value when it is sent; None if it is no tensor."""
    value = node.meta.get("val")
    return bytes_of((value,)) if isinstance(value, Tensor) else None
