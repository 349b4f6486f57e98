"""`CapturedModel`: a captured module, ready to be cut into layers."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeplan.core.errors import InputError
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.graph.crossing import Crossings
from pipeplan.frontend.capture.graph.cuts import calls_of, module_cuts, place_cuts, whole_calls
from pipeplan.frontend.capture.graph.export import Captured, explained, export
from pipeplan.frontend.capture.graph.inplace import functionalise
from pipeplan.frontend.capture.graph.layer import GraphLayer, TableCache, is_persistent, keep_unused
from pipeplan.frontend.capture.graph.modes import join, only_as_captured
from pipeplan.frontend.capture.graph.naming import layer_kind, layer_names
from pipeplan.frontend.capture.graph.python_state import check_repeats
from pipeplan.frontend.capture.graph.sorts import sort_nodes, touches_state
from pipeplan.frontend.capture.graph.write import Source, constants_of, maker_of, module_of, names_inside, ordered
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import pytree
from pipeplan.frontend.parameters import named_tensors


class CapturedModel:
    """The graph of a module for one size of micro-batch.

    Parameters
    ----------
    module : torch.nn.Module
        On any device; only shapes and types are read. Its parameters and buffers are those of the layers.
    inputs : tensor, tuple or list of tensors, or dict
        One micro-batch.
    both_modes : bool
        Make the layers follow ``train()`` and ``eval()``; otherwise they run in the module's present mode only.
    checks : bool
        Check that forwards repeat (see `graph.python_state`). False for a module that was checked with another size.

    Raises
    ------
    InputError
        If torch.export cannot capture it, or a graph cannot hold all it does: see `graph.gradients` for what acts on
        gradients, `graph.python_state` for what changes from call to call.
    """

    def __init__(self, module: nn.Module, inputs: Batch, *, both_modes: bool = True, checks: bool = True) -> None:
        if checks:
            check_repeats(module, inputs)
        self._module = module
        self._tensors = dict(named_tensors(module))
        captured = {module.training: export(module, inputs, training=module.training)}
        if both_modes:
            with suppress(InputError):  # a model that can be captured in one mode only is still accepted
                captured[not module.training] = export(module, inputs, training=not module.training)
        with explained(type(module).__name__):
            pins = {mode: functionalise(found.graph) for mode, found in captured.items()}
        self._either = either = _joined(captured[True], captured[False]) if len(captured) == 2 else None
        mode = module.training if either is None else True
        self._captured, self._pins = captured[mode], pins[mode]
        graph = self._captured.graph
        nodes = sort_nodes(graph, self._tensors, self._pins)
        transient = {name for name in self._tensors if not is_persistent(module, name)} | set(self._captured.constants)
        self._source = Source(nodes, {**self._tensors, **self._captured.constants}, either or {}, transient)
        self._results = tuple(result for result in self._captured.outputs if isinstance(result, fx.Node))
        self._inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
        self._crossings = Crossings(graph, nodes, self._results)
        self._root = calls_of(nodes.units, type(module).__name__)
        self._matrices = [self._read(unit, 2) for unit in nodes.units]
        if not any(self._matrices):
            self._matrices = [self._read(unit, 0) for unit in nodes.units]

    def _sent(self, place: int) -> tuple[fx.Node, ...]:
        """Nodes to send at a place; see `Crossings.at`."""
        try:
            return self._crossings.at(place)
        except Exception as error:
            maker = _sized_by_values(self._captured.graph)
            if not maker:
                raise
            raise InputError(
                f"{type(self._module).__name__} cannot be cut: the size of what {maker} makes depends on values in the "
                "batch; write it with masks or a fixed number of rows. A module in an nn.Sequential that has such "
                "sizes only inside is profiled as a layer on --device cpu or cuda, but pipeplan run needs fixed sizes"
            ) from error

    def _read(self, unit: Sequence[fx.Node], axes: int) -> int:
        """Number of elements that a unit reads of parameters with ``axes`` axes or more."""
        read = (self._tensors.get(str(p.target)) for n in unit for p in n.all_input_nodes if p.op == "get_attr")
        return sum(tensor.numel() for tensor in read if isinstance(tensor, nn.Parameter) and tensor.ndim >= axes)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Places to cut; place c lies ahead of the c-th unit of work."""
        barred = {place for first, last in self._spans() for place in range(first + 1, last + 1)}
        count = len(self._source.nodes.units)
        return tuple(place for place in range(1, count) if place not in barred and self._sent(place))

    def _spans(self) -> Iterator[tuple[int, int]]:
        """First and last units of spans without cuts, because of memory written in place or changing buffers."""
        unit = self._source.nodes.unit
        users: dict[str, list[int]] = {name: [] for node in unit for name in touches_state(node)}
        for pin in self._pins:
            if pin.first.op == "get_attr":
                users.setdefault(str(pin.first.target), []).append(unit[pin.write])
            else:
                yield unit.get(pin.first, 0), unit[pin.write]
        for node, number in unit.items():
            for parent in node.all_input_nodes:
                if parent.op == "get_attr" and parent.target in users:
                    users[str(parent.target)].append(number)
        yield from ((min(numbers), max(numbers)) for numbers in users.values())

    def module_cuts(self, group: Sequence[str] = ()) -> tuple[int, ...]:
        """Default places to cut, between modules (see `pipeplan.frontend.capture.graph.cuts`).

        Raises
        ------
        InputError
            If there are none.
        """
        barred = {place for call in whole_calls(self._root, group) for place in range(call.first + 1, call.end)}
        allowed = [place for place in self.places if place not in barred]
        cuts = module_cuts(self._root, self._passing, self._matrices, set(allowed)) or place_cuts(
            allowed, self._passing, self._matrices
        )
        if not cuts:
            raise InputError(f"{type(self._module).__name__} is a single layer: there is nothing to cut")
        return cuts

    def _passing(self, place: int) -> int:
        count = len(self._source.nodes.units)
        if place == count:
            return len(self._results)
        return len(self._sent(place)) if place else len(self._inputs)

    def cut_at(self, cuts: Sequence[int]) -> LayerSequence:
        """Cut the graph at some of its `places`."""
        units = self._source.nodes.units
        borders = [0, *cuts, len(units)]
        busy = [bool(count) for count in self._matrices]
        names = layer_names(self._root, cuts, units, busy)
        cache = TableCache()
        layers = []
        for name, (first, end) in zip(names, pairwise(borders), strict=True):
            given = self._sent(first) if first else self._inputs
            results = self._sent(end) if end < len(units) else self._results
            work = [node for unit in units[first:end] for node in unit]
            layers.append(self._layer(name, work, given, results, cache))
        parameters = [dict(names_inside(layer, self._tensors)) for layer in layers]
        keep_unused(self._module, layers, parameters)
        return LayerSequence(
            tuple(names),
            tuple(layers),
            tuple(parameters),
            tuple(layer_kind(self._root, a, b, busy) for a, b in pairwise(borders)),
            Restore(
                tuple(_Tensor() if isinstance(result, fx.Node) else result for result in self._captured.outputs),
                self._captured.structure,
            ),
        )

    def _layer(
        self,
        name: str,
        work: Sequence[fx.Node],
        given: Sequence[fx.Node],
        results: Sequence[fx.Node],
        cache: TableCache,
    ) -> GraphLayer:
        nodes = ordered(self._source, work, given, results)
        tables = constants_of(self._source, nodes, results)
        refused = () if self._either is not None else (only_as_captured, self._module.training, name)
        body = module_of(self._source, nodes, [*tables, *given], results, refused)
        maker = maker_of(self._source, tables) if tables else None
        shapes = [torch.Size(node.meta["val"].shape) for node in given]
        layer = GraphLayer(name, body, maker, [table.name for table in tables], cache, shapes)
        layer.train(self._module.training)
        return layer


def _joined(training: Captured, evaluation: Captured) -> dict[fx.Node, dict[str, Any]] | None:
    same = training.structure == evaluation.structure
    return join(training.graph, evaluation.graph) if same else None


def _sized_by_values(graph: fx.Graph) -> str:
    """Return the first operation whose result has a size that depends on values, and its module; empty if none."""
    for node in graph.nodes:
        if free_unbacked_symbols(node.meta.get("val")):
            stack = tuple(node.meta.get("nn_module_stack", {}).values())
            name = getattr(getattr(node.target, "_schema", None), "name", str(node.target))
            return f"{name} in {stack[-1][0] or 'the model'}" if stack else name
    return ""


class _Tensor:
    """Placeholder of a tensor in the structure of the outputs."""


@dataclass(frozen=True)
class Restore:
    """Conversion of the last layer's tensors to the module's own return value."""

    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec

    def __call__(self, outputs: Tensor | Collection[Tensor]) -> Any:
        """See `pipeplan.frontend.capture.layer_sequence.LayerSequence.restore`."""
        tensors = iter((outputs,) if isinstance(outputs, Tensor) else outputs)
        leaves = [next(tensors) if isinstance(leaf, _Tensor) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.structure)
