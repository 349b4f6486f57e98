"""A captured layer as a module, with its constant tables, its contexts and tensors that no operation reads.

Tables depend neither on parameters nor on the batch: masks, positions, rotary tables. The unsplit model makes them in
every pass. Layers make them once on each device and keep them, until somebody writes
into a buffer that they are made from. Layers that need the same ones share them.

Parameters and buffers that no operation reads stay with the layer that is nearest to them in the model, so the layers'
state is that of the unsplit model, whole, and can be loaded into it again.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Parameter

from pipeplan.core.errors import InputError
from pipeplan.frontend.profile.ties import named_tensors


@dataclass(frozen=True)
class _Made:
    """Tables, the buffers that they were made from, and how often these had been written into."""

    tables: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    versions: tuple[int, ...]


class Shelf:
    """The tables of all layers of a row; layers that are copied together share a new, empty one."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], _Made] = {}

    def __deepcopy__(self, _: object) -> "Shelf":
        return Shelf()

    def tables(self, names: tuple[str, ...], maker: nn.Module, given: Tensor) -> tuple[Tensor, ...]:
        """The tables of these names on the device of ``given``, made by ``maker`` where they are not there.

        Where tensors have no values, nothing is kept.
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
            self._kept[key] = _Made(made, buffers, versions)
        return made


def _autocast_device(given: Tensor) -> str:
    return "cpu" if given.device.type == "meta" else given.device.type


class GraphLayer(nn.Module):  # type: ignore[misc]
    """Nodes of a captured graph between two cuts.

    Its parameters and buffers lie in ``body`` and ``constants``. Flags follow ``train()`` and ``eval()``, devices the
    first tensor it is called with.

    Parameters
    ----------
    body : torch.fx.GraphModule
        ``body(training, device, *tables, *tensors)``.
    constants : torch.fx.GraphModule, optional
        ``constants(training, device)`` makes the tables.
    tables : sequence of str
        What the tables are called on the shelf.
    shapes : sequence of torch.Size
        Of the tensors that it is called with.
    """

    def __init__(
        self,
        name: str,
        body: fx.GraphModule,
        constants: nn.Module | None,
        tables: Sequence[str],
        shelf: Shelf,
        shapes: Sequence[torch.Size],
    ) -> None:
        super().__init__()
        self.name, self.body, self.constants = name, body, constants
        self._tables, self._shelf, self._shapes = tuple(tables), shelf, tuple(shapes)

    def forward(self, *tensors: Tensor) -> Any:
        """The tensors that the next layer takes."""
        if tuple(tensor.shape for tensor in tensors) != self._shapes:
            self._refuse(tensors)
        first = tensors[0]
        tables = self._shelf.tables(self._tables, self.constants, first) if self.constants is not None else ()
        return self.body.forward(self.training, first.device, *tables, *tensors)

    def _refuse(self, tensors: Sequence[Tensor]) -> None:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        expected = ", ".join(str(tuple(shape)) for shape in self._shapes)
        raise InputError(
            f"layer {self.name} was captured for tensors of shape {expected} and was called with {found}; a captured "
            "graph is fixed to one micro-batch size: capture the model again for another, and drop a smaller last batch"
        )


class Within(nn.Module):  # type: ignore[misc]
    """Runs a part of a layer in its contexts, outermost first: ``("grad", enabled)``, ``("autocast", dtype, …)``."""

    def __init__(self, part: nn.Module, contexts: Sequence[tuple[Any, ...]]) -> None:
        super().__init__()
        self.part = part
        self.contexts = tuple(contexts)

    def forward(self, training: bool, device: torch.device, *tensors: Tensor) -> Any:
        """As the part."""
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
    """Give each unused tensor to a layer, and its name to that layer's mapping (see `frontend.capture.row.Row`)."""
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
    """Whether a tensor belongs to the module's state_dict."""
    path, _, last = name.rpartition(".")
    return last not in module.get_submodule(path)._non_persistent_buffers_set


def _nearness(name: str, names: Mapping[str, str]) -> int:
    """How many parts the name's path has in common with a layer's names, at most."""
    path = name.split(".")
    return max((_shared(path, other.split(".")) for other in names.values()), default=0)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
