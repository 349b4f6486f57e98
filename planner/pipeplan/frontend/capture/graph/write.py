"""Code generation of one layer: copy nodes of the captured graph into a graph of their own.

::

    forward(training, device, table0, …, tensor0, …)      mode and device come first
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeplan.frontend.capture.graph.export import WITHIN
from pipeplan.frontend.capture.graph.layer import InContexts
from pipeplan.frontend.capture.graph.modes import TRAINING_ONLY, Either, pick, when
from pipeplan.frontend.capture.graph.sorts import Sort, Sorted
from pipeplan.frontend.capture.private import pytree

UNSPLIT = "unsplit name"
"""Key in the meta of nodes that read a parameter, buffer or constant."""

_TAKEN = frozenset(dir(fx.GraphModule)) | frozenset(vars(nn.Module()))
"""Names that parameters and buffers of a graph module cannot have, like ``code``."""


@dataclass(frozen=True)
class Source:
    """The captured graph with its parameters, modes and transient names.

    Attributes
    ----------
    held : mapping
        Parameters, buffers and constants by the names that ``get_attr`` nodes have.
    either : mapping
        Arguments by name of the nodes whose arguments differ in evaluation.
    transient : set of str
        Names in ``held`` that do not belong to the model's state.
    """

    nodes: Sorted
    held: Mapping[str, Tensor]
    either: Mapping[fx.Node, Mapping[str, Any]]
    transient: Set[str]


def ordered(source: Source, work: Iterable[fx.Node], given: Iterable[fx.Node], results: Iterable[Any]) -> list[fx.Node]:
    """Nodes that a layer computes, in order: its work, preceded by the nodes computed again for it.

    Constants are not included.
    """
    done = set(given)
    found: list[fx.Node] = []

    def compute(node: fx.Node) -> None:
        if node in done or source.nodes.sort[node] in (Sort.HELD, Sort.CONSTANT):
            return
        done.add(node)
        for parent in node.all_input_nodes:
            compute(parent)
        found.append(node)

    for node in work:
        compute(node)
    for result in results:
        if isinstance(result, fx.Node):
            compute(result)
    return found


def constants_of(source: Source, nodes: Iterable[fx.Node], results: Iterable[Any]) -> list[fx.Node]:
    """Constants that are results or that nodes read, except those that are buffers."""
    read = [parent for node in nodes for parent in node.all_input_nodes]
    read += [result for result in results if isinstance(result, fx.Node)]
    return [node for node in dict.fromkeys(read) if source.nodes.sort[node] is Sort.CONSTANT and node.op != "get_attr"]


def module_of(
    source: Source,
    nodes: Sequence[fx.Node],
    given: Sequence[fx.Node],
    results: Sequence[Any],
    first: Sequence[Any] = (),
) -> fx.GraphModule:
    """A module that computes ``results`` from ``given``, with the parameters and buffers that it reads.

    ``first``: a function to call first with the mode, and its other arguments.
    """
    writer = _Writer(source, given)
    if first:
        writer.graph.call_function(first[0], (writer.training, *first[1:]))
    for contexts, run in groupby(nodes, key=lambda node: node.meta[WITHIN]):
        row = list(run)
        if contexts:
            writer.within(contexts, row, nodes[nodes.index(row[-1]) + 1 :], results)
        else:
            for node in row:
                writer.copy(node)
    found = tuple(writer.value(result) for result in results)
    writer.graph.output(found[0] if len(found) == 1 else found)
    return writer.module()


def maker_of(source: Source, tables: Sequence[fx.Node]) -> fx.GraphModule:
    """A module that makes these constants from buffers only."""
    found: dict[fx.Node, None] = {}

    def add(node: fx.Node) -> None:
        if node.op != "get_attr" and node not in found:
            for parent in node.all_input_nodes:
                add(parent)
            found[node] = None

    for table in tables:
        add(table)
    writer = _Writer(source, ())
    for node in found:
        writer.copy(node)
    writer.graph.output(tuple(writer.value(table) for table in tables))
    return writer.module()


class _Writer:
    def __init__(self, source: Source, given: Sequence[fx.Node]) -> None:
        self._source = source
        self.graph = fx.Graph()
        self.training = self.graph.placeholder("training")
        self._device = self.graph.placeholder("device")
        self._env = {node: self.graph.placeholder(node.name) for node in given}
        self._held: dict[str, Tensor | nn.Module] = {}

    def module(self) -> fx.GraphModule:
        """The module that was written."""
        module = fx.GraphModule(self._held, self.graph, "Layer")
        for node in self.graph.nodes:
            if node.meta.get(UNSPLIT) in self._source.transient:
                module._non_persistent_buffers_set.add(node.target)
        return module

    def value(self, result: Any) -> Any:
        """The value, in the new graph, of a node of the source."""
        if not isinstance(result, fx.Node):
            return result
        if result not in self._env:
            assert result.op == "get_attr", f"{result} is not there"
            name = str(result.target)
            local = name.replace(".", "_")  # one look-up per pass; a path of modules would cost one per module
            while local in self._held or local in _TAKEN:
                local += "_"
            self._held[local] = self._source.held[name]
            self._env[result] = self.graph.get_attr(local)
            self._env[result].meta[UNSPLIT] = name
        return self._env[result]

    def copy(self, node: fx.Node) -> None:
        """Copy one node."""
        args: tuple[Any, ...] = node.args
        kwargs: Mapping[str, Any] = node.kwargs
        if node in self._source.either:
            args, kwargs = _by_place(node, self._source.either[node])
        args, kwargs = pytree.tree_map(self._argument, (args, dict(kwargs)))
        if node.meta.get(TRAINING_ONLY):
            self._env[node] = self.graph.call_function(when, (self.training, node.target, *args), kwargs)
        else:
            self._env[node] = self.graph.call_function(node.target, args, kwargs)
        self._env[node].meta |= {name: node.meta.get(name) for name in ("nn_module_stack", "stack_trace")}

    def within(
        self, contexts: Sequence[Any], run: Sequence[fx.Node], later: Sequence[fx.Node], results: Sequence[Any]
    ) -> None:
        """Copy nodes that run in contexts into a module of their own."""
        made = set(run)
        read = dict.fromkeys(parent for node in run for parent in node.all_input_nodes)
        given = [node for node in read if node not in made and node.op != "get_attr"]
        wanted = {parent for node in later for parent in node.all_input_nodes} | {
            result for result in results if isinstance(result, fx.Node)
        }
        left = [node for node in run if node in wanted]
        writer = _Writer(self._source, given)
        for node in run:
            writer.copy(node)
        writer.graph.output(tuple(writer.value(node) for node in left))
        name = f"within{len(self._held)}"
        self._held[name] = InContexts(writer.module(), contexts)
        called = self.graph.call_module(name, (self.training, self._device, *(self.value(node) for node in given)))
        for number, node in enumerate(left):
            self._env[node] = self.graph.call_function(_item, (called, number))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.value(value)
        if isinstance(value, torch.device):
            return self._device
        if isinstance(value, Either):
            if (value.training, value.evaluation) == (True, False):
                return self.training
            return self.graph.call_function(pick, (self.training, value.training, value.evaluation))
        return value


def _item(values: Sequence[Any], number: int) -> Any:
    return values[number]


def _by_place(node: fx.Node, named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert arguments by name to positional and keyword-only ones."""
    schema = node.target._schema.arguments
    only = {argument.name for argument in schema if argument.kwarg_only}
    args = tuple(named[argument.name] for argument in schema if argument.name not in only)
    return args, {name: value for name, value in named.items() if name in only}


def names_inside(layer: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Names of each parameter and buffer of a layer: in the layer, and in the model."""
    for path, part in layer.named_modules(remove_duplicate=False):
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if node.meta.get(UNSPLIT) in tensors:
                    yield f"{path}.{node.target}" if path else str(node.target), node.meta[UNSPLIT]
