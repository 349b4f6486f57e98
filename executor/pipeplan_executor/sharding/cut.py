"""One member's part of a parameter that is cut."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cut:
    """Equal parts along one axis, of which one is here.

    Attributes
    ----------
    shape : tuple of int
        Of the whole parameter.
    axis : int
    parts : int
    number : int
        Which of them is here.
    """

    shape: tuple[int, ...]
    axis: int
    parts: int
    number: int

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the part begins, axis by axis."""
        return tuple(self.number * self._length if axis == self.axis else 0 for axis in range(len(self.shape)))

    @property
    def _length(self) -> int:
        return self.shape[self.axis] // self.parts

    def of(self, whole: Tensor) -> Tensor:
        """The part, in memory of its own."""
        part = whole.narrow(self.axis, self.number * self._length, self._length)
        return part.clone(memory_format=torch.contiguous_format)
