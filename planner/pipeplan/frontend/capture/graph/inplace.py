"""Writes in place: made functional if no other node reads the memory, otherwise kept within one layer.

::

    conv ─▶ relu_ ─▶ pool          becomes    conv ─▶ relu ─▶ pool
    o ─▶ o[:, :4] ─▶ add_, then o  stays, and no cut comes between the first of them and the write

A write under ``no_grad`` into a tensor from outside stays too: its gradient passes as if nothing had been written.
A stage must not write into a tensor that it received. Writes into buffers (batch norm's count of batches) stay, as
buffers are meant to be written.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pipeplan.frontend.capture.graph.export import WITHIN
from pipeplan.frontend.capture.private import memory_of


@dataclass(frozen=True)
class Pin:
    """A node whose memory a later node writes: no cut may separate these two, nor the readers of a parameter."""

    first: fx.Node
    write: fx.Node


def functionalise(graph: fx.Graph) -> tuple[Pin, ...]:
    """Replace writes in place by functional operations where possible; return the others."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    sharing: dict[Any, list[fx.Node]] = defaultdict(list)
    for node in order:
        if isinstance(node.meta.get("val"), Tensor):
            sharing[memory_of(node.meta["val"])].append(node)
    pins = []
    for node in list(graph.nodes):
        if not writes(node) or writes_buffer(node):
            continue
        target = node.args[0]
        place = order[node]
        readers = sharing[memory_of(target.meta["val"])] if isinstance(target, fx.Node) else []
        earlier = [other for other in readers if order[other] < place]
        shared = any(
            other.op == "get_attr" or any(order[user] > place for user in other.users if user is not node)
            for other in earlier
        )
        functional = _functional(node)
        if functional is None or shared or not isinstance(target, fx.Node) or _graph(target) != _graph(node):
            pins += [Pin(other, node) for other in earlier]
        else:
            node.target = functional
    pins += [Pin(node.args[0], node) for node in graph.nodes if _reads_strides(node)]
    return tuple(pins)


def _graph(node: fx.Node) -> bool:
    """True if autograd records the node."""
    return all(enabled for kind, enabled, *_ in node.meta[WITHIN] if kind == "grad")


def writes(node: fx.Node) -> bool:
    """True if the node writes into one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def writes_buffer(node: fx.Node) -> bool:
    """True if the node writes into a buffer (a constant would be meant for one call only)."""
    return bool(written(node))


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The buffers that the node writes into."""
    if not writes(node):
        return ()
    schema = node.target._schema
    found = []
    for number, argument in enumerate(schema.arguments):
        value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
        declared = argument.alias_info is not None and argument.alias_info.is_write
        if declared and isinstance(value, fx.Node) and value.op == "get_attr":
            found.append(value)
    return tuple(found)


def _functional(node: fx.Node) -> Any:
    """The functional variant of an operation in place: ``relu`` for ``relu_``."""
    name = node.target._schema.name.partition("::")
    if not name[2].endswith("_") or name[2].endswith("__"):
        return None
    packet = getattr(getattr(torch.ops, name[0]), name[2][:-1], None)
    overload = node.target._overloadname
    if packet is None or overload not in packet.overloads():
        return None
    found = getattr(packet, overload)
    mine = [argument.name for argument in node.target._schema.arguments]
    return found if [argument.name for argument in found._schema.arguments] == mine else None


def _reads_strides(node: fx.Node) -> bool:
    """True if the operation depends on a tensor's strides, which sending it would change."""
    name = getattr(getattr(node.target, "_schema", None), "name", "")
    return name in ("aten::as_strided", "aten::as_strided_") and isinstance(node.args[0], fx.Node)
