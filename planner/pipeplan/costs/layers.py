"""Layer costs on a kind of device at a micro-batch size: measured, interpolated, or estimated; optimiser memory.

Profiles come first. Between two measured sizes every figure is interpolated linearly; outside them an error is raised,
unless extrapolation in proportion is allowed. A kind without a profile is estimated by the roofline: an operation takes
the longer of its arithmetic and its memory traffic (Williams, Waterman, Patterson, Roofline, CACM 2009).

A device whose on-chip memory holds a stage's parameters and gradients reads and writes them there
(``weights_on_chip``); only activations use its main memory. Otherwise both stream through main memory for every
micro-batch.
"""

from collections.abc import Sequence
from dataclasses import fields
from math import isqrt

from pipeplan.core.choices import known
from pipeplan.core.cluster import DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.job import OPTIMIZER_STATE
from pipeplan.core.model import Layer, LayerCost, Model, Profile

ITEM_SIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""


def item_size(dtype: str) -> int:
    """Return the bytes of one number of the format ``dtype``."""
    return ITEM_SIZE[known(dtype, "number format", ITEM_SIZE)]


def gradient_bytes(parameters: int, dtype: str, stated: int | None = None) -> int:
    """Return the bytes in which gradients of ``parameters`` bytes of parameters are kept.

    ``stated`` are those of each parameter; by default they are in the parameters' format.
    """
    return parameters if stated is None else parameters // item_size(dtype) * stated


def optimizer_bytes(parameters: int, dtype: str, optimizer: str, stated: int | None = None) -> int:
    """Return the bytes of optimiser state for ``parameters`` bytes of parameters.

    ``stated`` are those of each parameter, with a master copy if there is one; by default they follow from the rest.

    Each state tensor is kept in single precision or better. Parameters in a 16-bit format also get a single-precision
    master copy, so that Adam in mixed precision takes 2 + 2 + 12 = 16 bytes per parameter
    (Rajbhandari et al., ZeRO, 2020, section 3.1).
    """
    size = item_size(dtype)
    count = parameters // size
    if stated is not None:
        return count * stated
    master = 4 * count if size < 4 else 0
    return master + OPTIMIZER_STATE[optimizer] * count * max(size, 4)


MOST_SIZES = 12
"""Largest number of micro-batch sizes that are considered for a model without profiles."""


def layer_costs(
    model: Model,
    kind: DeviceKind,
    micro_batch: int,
    *,
    extrapolate: bool = False,
    optimizer: str = "sgd",
    state_bytes: int | None = None,
    weights_on_chip: bool = False,
) -> tuple[LayerCost, ...]:
    """Return one cost per layer, in nanoseconds and bytes.

    Parameters
    ----------
    micro_batch : int
        Samples.
    extrapolate : bool
        Allow sizes outside the measured ones.
    optimizer : str
        For the analytic update time.
    state_bytes : int, optional
        Bytes of state for each parameter, where they do not follow from the optimiser; for the same.
    weights_on_chip : bool
        Parameters and their gradients need no memory traffic in forward and backward, on a kind with on-chip memory.
        This applies to estimates only: a profile does not separate that traffic.

    Raises
    ------
    InputError
        If the size lies outside the measured ones, or neither a profile nor an estimate is possible.
    """
    profiles = profiles_for(model, kind)
    if profiles:
        costs = _measured(model, profiles, micro_batch, extrapolate)
    else:
        moved = update_traffic(model.dtype, optimizer, state_bytes)
        on_chip = weights_on_chip and kind.on_chip is not None
        costs = tuple(
            _estimated(layer, model, kind, micro_batch, moved, on_chip, returns)
            for layer, returns in zip(model.layers, model.passes_back, strict=True)
        )
    return _slower(costs, kind.speed)


def profiles_for(model: Model, kind: DeviceKind) -> dict[int, Profile]:
    """Return the model's profiles for this kind, by micro-batch size."""
    name = kind.timed_as or kind.name
    return {profile.micro_batch: profile for profile in model.profiles if profile.device == name}


def available_micro_batches(
    model: Model, kinds: Sequence[DeviceKind], batch: int, *, extrapolate: bool = False
) -> tuple[int, ...]:
    """Return the micro-batch sizes that divide the batch and that every kind's profile allows, ascending.

    Between measured sizes, divisors count too. Where no kind has a profile, and where extrapolation is allowed, these
    are powers of two and measured sizes, at most `MOST_SIZES` of them, largest dropped first.

    Raises
    ------
    InputError
        If there is none.
    """
    each = {kind.name: sorted(profiles_for(model, kind)) for kind in kinds}
    measured = [sizes for sizes in each.values() if sizes]
    if measured and not extrapolate:
        low, high = max(sizes[0] for sizes in measured), min(sizes[-1] for sizes in measured)
        found = _divisors(batch, low, high)
        if not found:
            sizes = str(low) if low == high else f"{low} to {high}"
            raise InputError(
                f"{model.name} is profiled for micro-batches of {sizes} samples, and none of these divides a "
                f"batch of {batch}; choose another batch, profile more sizes, or allow --extrapolate"
            )
        return tuple(found)
    known = {size for sizes in measured for size in sizes}
    powers = {2**k for k in range(MOST_SIZES)}
    return tuple(sorted(size for size in powers | known if batch % size == 0)[:MOST_SIZES])


def _divisors(number: int, low: int, high: int) -> list[int]:
    """Return the divisors from ``low`` to ``high``, ascending; long ranges search pairs up to the square root."""
    if high - low <= isqrt(number):
        return [size for size in range(low, min(high, number) + 1) if number % size == 0]
    pairs = [{size, number // size} for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted(size for pair in pairs for size in pair if low <= size <= high)


def _measured(model: Model, profiles: dict[int, Profile], micro_batch: int, extrapolate: bool) -> tuple[LayerCost, ...]:
    if micro_batch in profiles:
        return profiles[micro_batch].costs
    below = max((size for size in profiles if size < micro_batch), default=None)
    above = min((size for size in profiles if size > micro_batch), default=None)
    if below is not None and above is not None:
        share = (micro_batch - below) / (above - below)
        pairs = zip(profiles[below].costs, profiles[above].costs, strict=True)
        return tuple(_mix(low, high, share) for low, high in pairs)
    if not extrapolate:
        sizes = ", ".join(map(str, sorted(profiles)))
        raise InputError(
            f"{model.name} is profiled for micro-batches of {sizes} samples; {micro_batch} lies outside. Profile it, "
            "or allow --extrapolate (costs then grow in proportion)"
        )
    nearest = below if below is not None else above
    assert nearest is not None
    return tuple(_in_proportion(cost, micro_batch / nearest) for cost in profiles[nearest].costs)


def _mix(low: LayerCost, high: LayerCost, share: float) -> LayerCost:
    values = {f.name: (getattr(low, f.name), getattr(high, f.name)) for f in fields(LayerCost)}
    return LayerCost(**{name: round(a + share * (b - a)) for name, (a, b) in values.items()})


def _in_proportion(cost: LayerCost, factor: float) -> LayerCost:
    """Scale everything except the update, which does not depend on the micro-batch."""
    scaled = {f.name: round(factor * getattr(cost, f.name)) for f in fields(LayerCost) if f.name != "update"}
    return LayerCost(**scaled, update=cost.update)


def _slower(costs: tuple[LayerCost, ...], speed: float) -> tuple[LayerCost, ...]:
    if speed == 1.0:
        return costs
    times = ("forward", "backward", "input_gradient", "weight_gradient", "update")
    return tuple(
        LayerCost(
            **{f.name: getattr(cost, f.name) for f in fields(LayerCost) if f.name not in times},
            **{name: round(getattr(cost, name) / speed) for name in times},
        )
        for cost in costs
    )


def update_traffic(dtype: str, optimizer: str, state_bytes: int | None = None) -> int:
    """Return the bytes that an update moves for each parameter: it reads and writes all, and reads the gradient."""
    size = item_size(dtype)
    if state_bytes is not None:
        return 3 * size + 2 * state_bytes
    return max(4, size) * (3 + 2 * OPTIMIZER_STATE[optimizer])


def _estimated(
    layer: Layer,
    model: Model,
    kind: DeviceKind,
    micro_batch: int,
    moved_per_parameter: int,
    on_chip: bool,
    returns: bool,
) -> LayerCost:
    """Estimate a layer's cost by the roofline of each pass.

    A pass reads weights and the activations that it needs, and writes its result. An optimiser step reads and writes
    every parameter and its state, and reads the gradient. ``returns``: the layer has a backward.
    """
    if layer.work is None:
        profiled = ", ".join(model.profiled_devices) or "none"
        raise InputError(
            f"{model.name} has no profile for {kind.timed_as or kind.name!r} (profiled: {profiled}), and its layer "
            f"{layer.name!r} has no operation counts for an estimate; profile it there, or give the kind "
            "`speed: {relative_to: ..., factor: ...}`"
        )
    if model.dtype not in kind.peak or kind.bandwidth is None:
        missing = "memory bandwidth" if model.dtype in kind.peak else f"peak for {model.dtype}"
        raise InputError(
            f"device kind {kind.name!r} has no {missing}; "
            f"known peaks: {', '.join(kind.peak) or 'none'}. Add it, or profile {model.name} there"
        )
    peak, bandwidth = kind.efficiency * kind.peak[model.dtype], kind.efficiency * kind.bandwidth
    output, saved = layer.work.output * micro_batch, layer.work.saved * micro_batch

    def takes(flops: int, moved: int) -> int:
        busy = max(flops * micro_batch / peak, moved / bandwidth)
        return kind.overhead + round(1e9 * busy) if flops or moved else 0

    streamed, trained = (0, 0) if on_chip else (layer.parameters + layer.frozen, layer.parameters)
    forward = takes(layer.work.forward_flops, streamed + saved + output)
    input_gradient = takes(layer.work.input_gradient_flops, streamed + saved + output) if returns else 0
    weighted = returns and (layer.work.weight_gradient_flops or layer.parameters)
    weight_gradient = takes(layer.work.weight_gradient_flops, trained + saved) if weighted else 0
    moved = layer.parameters // item_size(model.dtype) * moved_per_parameter
    return LayerCost(
        forward=forward,
        backward=input_gradient + weight_gradient,
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
        saved=saved,
        output=output,
        workspace=layer.work.workspace * micro_batch + layer.work.workspace_fixed,
        update=round(1e9 * moved / bandwidth),
    )
