"""Tables of the layers of a chain: times and bytes on each row of devices that a stage may run on.

If the stages are given, a *row* is the devices of a stage (`costs.chain.Chain` and `ChainPartition`: rows have shape
(S,)). If they are chosen, it is a kind of device with a width (`ChainAllocation`: shape (C, W)). The last axis of a
table is the layer, n entries, or the cut behind a layer, n − 1 entries::

    table      one number for      (S, n)         rows of stages
    resident   row and layer       (C, W, n)      rows of kind and width
                                   (C, n)         the same for every width
                                   (n,)           the same for every row

A subclass states the shapes that it uses in `LayerTables.SHAPES`. Tables that are left out hold zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
Flags = NDArray[np.bool_]

LEFT_OUT: Any = object()
"""Default of a table that may be left out: `LayerTables.fill` replaces it by zeros."""


@dataclass(frozen=True, kw_only=True)
class LayerTables:
    """Times and bytes of n layers. Times are integers of one unit, sizes integers of another.

    Attributes
    ----------
    SHAPES : mapping of str to tuple of str
        For each array of a subclass the shapes that it may have, one letter per axis. Optional arrays may be None.
    forward, backward : array of int
        F, B: time of one micro-batch, nothing recomputed.
    update : array of int
        U: time of the optimizer step.
    reduce : array of int
        Time that the layer's gradients add to the all-reduce among the replicas of its stage.
    reduce_base : array of int, one number per row
        Time of that all-reduce that does not depend on bytes; it counts for stages with a layer of ``reduce`` > 0.
    hides : array of int
        h: part of the layer's last backward beside which gradients of layers behind it on the stage may be summed
        (`exposed`). If it is 0 everywhere, the all-reduce begins when the last backward has ended.
    gather, gather_base, gather_hides : array of int
        The same of parameters that are gathered at the begin of a step: the first forward of a layer hides gathers of
        layers behind it on the stage.
    resident : array of int
        P: bytes that stay for the whole step: parameters, gradients, optimizer state.
    saved, output : array of int
        A: bytes held per micro-batch in flight, by a layer that saves everything for its backward, and by a recomputed
        one.
    workspace : array of int
        Z: bytes that live only while the layer computes.
    rebuilt : array of int, optional
        Bytes that live only while a recomputed layer computes, at least its workspace; by default that and everything
        that it saves. Shape as ``workspace``.
    recomputable : array of bool, shape (n,)
        Layers that may be recomputed.
    limit : array of int, one number per stage or kind
        L: bytes of a device.
    send, latency : array of int
        f and l: time that the tensors of a cut keep the link of a hop busy, and the latency of the link.
    """

    SHAPES: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    forward: Array
    backward: Array
    update: Array = LEFT_OUT
    reduce: Array = LEFT_OUT
    reduce_base: Array = LEFT_OUT
    hides: Array = LEFT_OUT
    gather: Array = LEFT_OUT
    gather_base: Array = LEFT_OUT
    gather_hides: Array = LEFT_OUT
    resident: Array = LEFT_OUT
    saved: Array = LEFT_OUT
    output: Array = LEFT_OUT
    workspace: Array = LEFT_OUT
    rebuilt: Array | None = None
    recomputable: Flags = LEFT_OUT
    limit: Array
    send: Array = LEFT_OUT
    latency: Array = LEFT_OUT

    @property
    def layers(self) -> int:
        """n."""
        return int(self.forward.shape[-1])

    @property
    def savings(self) -> Array:
        """Bytes per micro-batch in flight that recomputation of each layer saves; negative where it takes more."""
        less: Array = self.saved - self.output
        return less

    @property
    def again(self) -> Array:
        """Bytes needed while a recomputed layer computes: ``rebuilt``, or its workspace and all that it saves."""
        peak: Array = self.saved + self.workspace if self.rebuilt is None else self.rebuilt
        return peak

    @property
    def useful(self) -> Flags:
        """Layers that may be recomputed and hold less then."""
        useful: Flags = self.recomputable & (self.output < self.saved)
        return useful

    @property
    def least_held(self) -> Array:
        """Fewest bytes that a layer can hold per micro-batch in flight."""
        return np.where(self.useful, self.output, self.saved)

    @cached_property
    def prefix(self) -> dict[str, Array]:
        """Sums along the layers: ``prefix[name][..., b] - prefix[name][..., a]`` is the sum of layers a … b − 1."""
        names = ("forward", "backward", "update", "resident", "saved")
        return {name: sums_before(getattr(self, name)) for name in names}

    def fill(self, sizes: Mapping[str, int]) -> None:
        """Put zeros where a table was left out, given the length of each axis of `SHAPES`."""
        if self.recomputable is not LEFT_OUT and self.output is LEFT_OUT:
            raise ValueError("layers may be recomputed, so output (bytes held by a recomputed layer) is required")
        for name, shapes in self.SHAPES.items():
            if getattr(self, name) is LEFT_OUT:
                dtype = np.bool_ if name == "recomputable" else np.int64
                object.__setattr__(self, name, np.zeros([sizes[axis] for axis in shapes[0]], dtype))

    def check_shapes(self, sizes: Mapping[str, int]) -> None:
        """Raise ``ValueError`` if an array has none of its `SHAPES`, given the length of each axis, or is negative."""
        lengths = {
            shape: tuple(sizes[axis] for axis in shape) for shapes in set(self.SHAPES.values()) for shape in shapes
        }
        for name, shapes in self.SHAPES.items():
            array = getattr(self, name)
            if array is None or array is LEFT_OUT:
                continue
            allowed = [lengths[shape] for shape in shapes]
            if array.shape not in allowed:
                nearest = next((shape for shape in allowed if len(shape) == array.ndim), allowed[0])
                raise ValueError(f"{name} has shape {array.shape}, expected {nearest}")
            if array.size and array.min() < 0:
                raise ValueError(f"{name} holds a negative number: {int(array.min())}")

    def tables(self) -> dict[str, Any]:
        """The tables that all subclasses have, by name."""
        return {table.name: getattr(self, table.name) for table in fields(LayerTables)}

    def of_rows(self, rows: list[int]) -> dict[str, Any]:
        """The arrays of `SHAPES` with an axis of rows, restricted to some of the rows, by name."""
        axis = self.SHAPES["forward"][0][0]
        by_row = {name: getattr(self, name) for name, shapes in self.SHAPES.items() if shapes[0][0] == axis}
        return {name: table[rows] for name, table in by_row.items() if table is not None}


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values that differ, ascending: `numpy.unique`, which loads masked arrays in ten milliseconds."""
    ascending = np.sort(values, axis=None)
    found: NDArray[Any] = ascending[np.append(True, np.diff(ascending) > 0)[: len(ascending)]]
    return found


def sums_before(table: Array | Flags) -> Array:
    """Sum of the entries before each boundary along the last axis, which becomes one entry longer."""
    sums = np.zeros((*table.shape[:-1], table.shape[-1] + 1), np.int64)
    np.cumsum(table, axis=-1, out=sums[..., 1:])
    return sums
