"""Layers that are measured one at a time: whose bytes are the tensors that pass between them.

::

    layer0 ──a──▶ layer1 ──b──▶ layer2        b is saved by layer2 alone: it counts as layer1's all the same
             ╰────a────╯                      a is saved by nobody: it is there while layer1 runs, and then gone
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from pipeplan.core.model import LayerCost
from pipeplan.frontend.profile.saved import SavedBytes, address


@dataclass(eq=False)
class _Parcel:
    """One storage on its way: the segment that made it, and whether its last layer's saved bytes contain it."""

    made_by: int
    size: int
    counted: bool
    kept: bool


class Joints:
    """Follows the tensors from segment to segment, for one micro-batch size."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._passing = {address(tensor): _Parcel(-1, 0, True, True) for tensor in inputs}
        self._read: list[tuple[_Parcel, ...]] = []
        self._all: list[_Parcel] = []

    def follow(self, held: SavedBytes) -> None:
        """One more segment, while what entered it is still there."""
        number = len(self._read)
        self._read.append(tuple(self._passing.values()))
        for key, parcel in self._passing.items():
            parcel.kept |= key in held.kept
        passing = {}
        for tensor in held.outputs:
            key = address(tensor)
            if key in self._passing:
                passing[key] = self._passing[key]
            elif key not in passing:
                kept = key in held.kept
                passing[key] = _Parcel(number, tensor.untyped_storage().nbytes(), kept, kept)
        self._all += [parcel for key, parcel in passing.items() if key not in self._passing]
        self._passing = passing

    def settle(self, segments: Sequence[Sequence[LayerCost]]) -> tuple[LayerCost, ...]:
        """All layers' costs in a row, with the bytes where they belong."""
        rows = [list(segment) for segment in segments]
        for parcel in self._all:
            if parcel.kept and not parcel.counted:
                maker = rows[parcel.made_by]
                maker[-1] = replace(maker[-1], saved=maker[-1].saved + parcel.size)
        for row, read in zip(rows, self._read, strict=True):
            gone = sum(parcel.size for parcel in read if not parcel.kept)
            row[0] = replace(row[0], workspace=row[0].workspace + gone)
        return tuple(cost for row in rows for cost in row)
