"""`GraphLayer`: a captured layer as a module, with its constant tables, contexts and unused parameters.

Tables depend neither on parameters nor on the batch: masks, positions, rotary tables. The unsplit model makes them in
every pass. Layers make them once on each device, and keep them until a buffer that they are made from is written.
Layers that need the same tables share them.

Parameters and buffers that no operation reads stay with the nearest layer in the model. So the state of all layers is
the whole state of the unsplit model, and can be loaded into it again.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Parameter

from pipeplan.core.errors import InputError
from pipeplan.frontend.parameters import named_tensors


@dataclass(frozen=True)
class _CachedTables:
    """Tables, the buffers that they were made from, and the versions of these buffers then."""

    tables: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    versions: tuple[int, ...]


class TableCache:
    """Cache of the tables of all layers of a model; layers that are copied together share a new, empty one."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], _CachedTables] = {}

    def __deepcopy__(self, _: object) -> "TableCache":
        return TableCache()

    def tables(self, names: tuple[str, ...], maker: nn.Module, given: Tensor) -> tuple[Tensor, ...]:
        """The tables of these names on the device of ``given``, made by ``maker`` if they are missing.

        Tensors without values are not kept.
        """
        buffers = tuple(maker._buffers.values())
        key = (names, given.device, *map(id, buffers))
        versions = tuple(0 if buffer.is_inference() else buffer._version for buffer in buffers)
        kept = self._kept.get(key)
        if kept is not None and kept.versions == versions and type(given) in (Tensor, Parameter):
            return kept.tables
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(_autocast_device(given), enabled=False):
            made: tuple[Tensor, ...] = maker.forward(False, given.device)
        if all(type(table) is Tensor and not table.is_meta for table in made):
            self._kept[key] = _CachedTables(made, buffers, versions)
        return made


def _autocast_device(given: Tensor) -> str:
    return "cpu" if given.device.type == "meta" else given.device.type


class GraphLayer(nn.Module):  # type: ignore[misc]
    """Nodes of a captured graph between two cuts.

    Its parameters and buffers are in ``body`` and ``constants``. Mode flags follow ``train()`` and ``eval()``; the
    device is that of the first tensor in the call.

    Parameters
    ----------
    body : torch.fx.GraphModule
        ``body(training, device, *tables, *tensors)``.
    constants : torch.fx.GraphModule, optional
        ``constants(training, device)`` makes the tables.
    tables : sequence of str
        Names of the tables in the cache.
    shapes : sequence of torch.Size
        Shapes of the tensors that the layer takes.
    """

    def __init__(
        self,
        name: str,
        body: fx.GraphModule,
        constants: nn.Module | None,
        tables: Sequence[str],
        cache: TableCache,
        shapes: Sequence[torch.Size],
    ) -> None:
        super().__init__()
        self.name, self.body, self.constants = name, body, constants
        self._tables, self._cache, self._shapes = tuple(tables), cache, tuple(shapes)

    def forward(self, *tensors: Tensor) -> Any:
        """Compute the tensors that the next layer takes."""
        if tuple(tensor.shape for tensor in tensors) != self._shapes:
            self._refuse(tensors)
        first = tensors[0]
        tables = self._cache.tables(self._tables, self.constants, first) if self.constants is not None else ()
        return self.body.forward(self.training, first.device, *tables, *tensors)

    def _refuse(self, tensors: Sequence[Tensor]) -> None:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        expected = ", ".join(str(tuple(shape)) for shape in self._shapes)
        raise InputError(
            f"layer {self.name} was captured for tensors of shape {expected} and was called with {found}; a captured "
            "graph is fixed to one micro-batch size: capture the model again for another, and drop a smaller last batch"
        )


class InContexts(nn.Module):  # type: ignore[misc]
    """Part of a layer that runs in contexts, outermost first: ``("grad", enabled)``, ``("autocast", dtype, …)``."""

    def __init__(self, part: nn.Module, contexts: Sequence[tuple[Any, ...]]) -> None:
        super().__init__()
        self.part = part
        self.contexts = tuple(contexts)

    def forward(self, training: bool, device: torch.device, *tensors: Tensor) -> Any:
        """Run the part in its contexts."""
        with ExitStack() as stack:
            for name, *values in self.contexts:
                if name == "grad":
                    stack.enter_context(torch.set_grad_enabled(values[0]))
                else:
                    dtype, enabled, cache = values
                    kind = "cpu" if device.type == "meta" else device.type
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cache))
            return self.part.forward(training, device, *tensors)


def keep_unused(module: nn.Module, layers: Sequence[nn.Module], parameters: Sequence[MutableMapping[str, str]]) -> None:
    """Assign each unused tensor to a layer, and its name to that layer's mapping (see `LayerSequence`)."""
    tensors = dict(named_tensors(module))
    used = {id(tensors[name]) for names in parameters for name in names.values()}
    for name, tensor in tensors.items():
        if id(tensor) in used:
            continue
        used.add(id(tensor))
        number = max(range(len(layers)), key=lambda n: (_nearness(name, parameters[n]), -n))
        layer = layers[number]
        if not hasattr(layer, "spare"):
            layer.spare = nn.Module()
        local = name.replace(".", "_")
        if isinstance(tensor, nn.Parameter):
            layer.spare.register_parameter(local, tensor)
        else:
            layer.spare.register_buffer(local, tensor, persistent=is_persistent(module, name))
        parameters[number][f"spare.{local}"] = name


def is_persistent(module: nn.Module, name: str) -> bool:
    """True if a tensor belongs to the module's state_dict."""
    path, _, last = name.rpartition(".")
    return last not in module.get_submodule(path)._non_persistent_buffers_set


def _nearness(name: str, names: Mapping[str, str]) -> int:
    """Length of the longest common path prefix of the name and a layer's names."""
    path = name.split(".")
    return max((_shared(path, other.split(".")) for other in names.values()), default=0)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
