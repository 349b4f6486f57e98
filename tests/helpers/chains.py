"""Chains for tests, written as the few numbers a test is about; everything else is zero, free or without limit."""

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
    boundary: ArrayLike = 0,
    bandwidth: int | Sequence[int | None] | None = None,
    send: ArrayLike | None = None,
    latency: ArrayLike = 0,
    input_gradient: ArrayLike | None = None,
    weight_gradient: ArrayLike | None = None,
    update: ArrayLike = 0,
    parameters: ArrayLike = 0,
    gradients: ArrayLike = 0,
    optimizer: ArrayLike = 0,
    saved: ArrayLike = 0,
    workspace: ArrayLike = 0,
    limit: ArrayLike = UNLIMITED,
    runtime: ArrayLike = 0,
    overlap: Overlap = Overlap.COPY,
    forward_flops: ArrayLike | None = None,
    micro_batch: int = 1,
) -> Chain:
    """A chain of S devices and n layers.

    Parameters
    ----------
    forward, backward : shape (n,) or (S, n)
        Nanoseconds. One row is the time on a device of speed 1; ``backward`` is all zero when left out.
    devices : int or sequence of float
        How many equal devices, or the speed of each.
    boundary : scalar or shape (n − 1,)
        Bytes over each cut.
    bandwidth : int or None, or one a link
        Bytes per second; None is a free link. ``send``, shape (S − 1, n − 1) or less, overrules it.
    input_gradient, weight_gradient : like ``backward``
        By default half of ``backward`` each, the odd nanosecond with the input gradient.
    parameters, gradients, optimizer, saved, workspace : scalar or shape (n,)
    limit, runtime : scalar or shape (S,)
    forward_flops : shape (n,)
        By default the forward times of the first device.
    """
    speeds = [1.0] * devices if isinstance(devices, int) else list(devices)
    first = np.asarray(forward)
    count, layers = len(speeds), first.shape[-1]
    kinds = {speed: DeviceKind(f"speed{speed:g}", speed=speed) for speed in speeds}
    times = _times(first, speeds)
    back = _times(np.asarray(backward if backward is not None else np.zeros(layers, np.int64)), speeds)
    halves = (back + 1) // 2, back // 2
    bytes_over = _filled(boundary, (layers - 1,))
    if send is None:
        per_link = list(bandwidth) if isinstance(bandwidth, Sequence) else [bandwidth] * (count - 1)
        send = np.array([[Link(rate).occupancy(int(b)) for b in bytes_over] for rate in per_link], np.int64)
        send = send.reshape(count - 1, layers - 1)
    return Chain(
        names=tuple(f"layer{i}" for i in range(layers)),
        groups=tuple((Device(index, kinds[speed], 0),) for index, speed in enumerate(speeds)),
        micro_batch=micro_batch,
        forward=times,
        backward=back,
        input_gradient=halves[0] if input_gradient is None else _times(np.asarray(input_gradient), speeds),
        weight_gradient=halves[1] if weight_gradient is None else _times(np.asarray(weight_gradient), speeds),
        update=_filled(update, (count, layers)),
        parameters=_filled(parameters, (layers,)),
        gradients=_filled(gradients, (layers,)),
        optimizer=_filled(optimizer, (count, layers)),
        reduce=_filled(0, (count, layers)),
        reduce_base=_filled(0, (count,)),
        saved=_filled(saved, (count, layers)),
        output=_filled(0, (count, layers)),
        recomputable=np.zeros(layers, np.bool_),
        workspace=_filled(workspace, (count, layers)),
        forward_workspace=_filled(workspace, (count, layers)),
        boundary=_filled(bytes_over, (count - 1, layers - 1)),
        send=_filled(send, (count - 1, layers - 1)),
        latency=_filled(latency, (count - 1,)),
        turns=((1, (0,)),) * (count - 1),
        limit=_filled(limit, (count,)),
        runtime=_filled(runtime, (count,)),
        overlap=overlap,
        forward_flops=times[0].copy() if forward_flops is None else _filled(forward_flops, (layers,)),
    )


def _filled(values: ArrayLike, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.asarray(values, np.int64), shape).copy()


def _times(values: np.ndarray, speeds: list[float]) -> Array:
    """One row per device; a single row is divided by the speeds, rounded up."""
    if values.ndim == 2:
        return values.astype(np.int64)
    return np.array([np.ceil(values / speed) for speed in speeds], np.int64)
