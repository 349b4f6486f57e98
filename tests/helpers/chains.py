"""Chains for tests, built from the few numbers that matter; everything else is zero, free or unlimited."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pipeplan.core.cluster import Device, DeviceKind, Link, Overlap
from pipeplan.costs.chain import UNLIMITED, Array, Chain


def make_chain(
    forward: ArrayLike,
    backward: ArrayLike | None = None,
    devices: int | Sequence[float] = 2,
    *,
    bandwidth: int | Sequence[int | None] | None = None,
    **fields: object,
) -> Chain:
    """Build a chain of S devices and n layers.

    Parameters
    ----------
    forward, backward : shape (n,) or (S, n)
        Nanoseconds. One row is the time on a device of speed 1; ``backward`` is all zero when left out.
    devices : int or sequence of float
        Number of equal devices, or the speed of each.
    bandwidth : int or None, or one per link
        Bytes per second; None is a free link. A field ``send`` overrules it.
    fields
        Those of `Chain`. Arrays may be scalars, or rows that all stages share; ``input_gradient`` and
        ``weight_gradient``, like ``backward``, are by default half of it, the odd nanosecond with the former.
    """
    speeds = [1.0] * devices if isinstance(devices, int) else list(devices)
    count, layers = len(speeds), np.asarray(forward).shape[-1]
    kinds = {speed: DeviceKind(f"speed{speed:g}", speed=speed) for speed in speeds}
    times = _times(forward, speeds)
    back = _times(np.zeros(layers, np.int64) if backward is None else backward, speeds)
    gradients = {"input_gradient": (back + 1) // 2, "weight_gradient": back // 2}
    for name in gradients.keys() & fields.keys():
        fields[name] = _times(fields[name], speeds)
    sizes = {"S": count, "L": count - 1, "n": layers, "c": layers - 1}
    tables = {
        name: np.broadcast_to(np.asarray(fields.pop(name), np.int64), [sizes[axis] for axis in shapes[0]]).copy()
        for name, shapes in Chain.SHAPES.items()
        if name in fields
    }
    if "send" not in tables:
        per_link = list(bandwidth) if isinstance(bandwidth, Sequence) else [bandwidth] * (count - 1)
        crossing = np.broadcast_to(tables.get("boundary", 0), (count - 1, layers - 1))
        occupied = [[Link(rate).occupancy(int(b)) for b in row] for rate, row in zip(per_link, crossing, strict=True)]
        tables["send"] = np.array(occupied, np.int64).reshape(count - 1, layers - 1)
    known = {**gradients, **{name: tables[name] for name in gradients.keys() & tables.keys()}}
    parts = known["input_gradient"] + known["weight_gradient"]
    defaults = {
        "names": tuple(f"layer{i}" for i in range(layers)),
        "groups": tuple((Device(index, kinds[speed], 0),) for index, speed in enumerate(speeds)),
        "micro_batch": 1,
        **gradients,
        "parts": parts,
        "whole": np.where(parts == 0, back, 0),
        "forward_workspace": tables.get("workspace", np.zeros_like(times)),
        "busiest": ((1, (0,)),) * (count - 1),
        "limit": np.full(count, UNLIMITED),
        "overlap": Overlap.COPY,
        "forward_flops": np.asarray(fields.pop("forward_flops", times[0]), np.int64).copy(),
    }
    return Chain(forward=times, backward=back, **{**defaults, **tables, **fields})


def _times(values: ArrayLike, speeds: list[float]) -> Array:
    """One row per device; a single row is divided by the speeds, rounded up."""
    values = np.asarray(values)
    if values.ndim == 2:
        return values.astype(np.int64)
    return np.array([np.ceil(values / speed) for speed in speeds], np.int64)
