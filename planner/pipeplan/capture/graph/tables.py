"""Tensors that depend neither on parameters nor on the batch: masks, positions, rotary tables.

The unsplit model makes them in every pass. Layers make them once on each device and keep them, and layers that need
the same ones share them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter


class Shelf:
    """The tables of all layers of a row; copied with layers that are copied together."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def tables(self, names: tuple[str, ...], maker: nn.Module, given: Tensor) -> tuple[Tensor, ...]:
        """The tables of these names on the device of ``given``, made by ``maker`` where they are not there.

        Where tensors have no values, nothing is kept.
        """
        key = (names, given.device)
        if key in self._kept and type(given) in (Tensor, Parameter):
            return self._kept[key]
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(_autocast_device(given), enabled=False):
            made: tuple[Tensor, ...] = maker.forward(False, given.device)
        if all(type(table) is Tensor and not table.is_meta for table in made):
            self._kept[key] = made
        return made


def _autocast_device(given: Tensor) -> str:
    return "cpu" if given.device.type == "meta" else given.device.type
