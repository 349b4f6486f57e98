"""Tensors that depend neither on parameters nor on the batch: masks, positions, rotary tables.

The unsplit model makes them in every pass. Layers make them once on each device and keep them, until somebody writes
into a buffer that they are made from. Layers that need the same ones share them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter


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
