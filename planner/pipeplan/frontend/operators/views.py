"""Axes of the results of operations that only view, copy or expand a tensor."""

from collections.abc import Callable, Mapping

import torch

from pipeplan.frontend.operators.factors import Axis, opaque, regrouped, sliced
from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.operators.sources import View

_ATEN = torch.ops.aten

Axes = tuple[Axis, ...]


def _argument(call: Call, place: int, default: int = 0) -> int:
    """Return an argument that is the number of an axis, counted from the first."""
    said: int = call.args[place] if len(call.args) > place else call.kwargs.get("dim", default)
    return said % int(call.given[0].dim())


def _same(_call: Call, axes: Axes, _number: int) -> Axes:
    return axes


def _regrouped(call: Call, axes: Axes, number: int) -> Axes:
    return regrouped(axes, call.made[number].shape)


def _turned(_call: Call, axes: Axes, _number: int) -> Axes:
    return axes[::-1]


def _transposed(call: Call, axes: Axes, _number: int) -> Axes:
    one, other = _argument(call, 1), _argument(call, 2)
    swapped = list(axes)
    swapped[one], swapped[other] = axes[other], axes[one]
    return tuple(swapped)


def _permuted(call: Call, axes: Axes, _number: int) -> Axes:
    return tuple(axes[number] for number in call.args[1])


def _expanded(call: Call, axes: Axes, number: int) -> Axes:
    before, shape = call.given[0].shape, call.made[number].shape
    first = len(shape) - len(before)
    kept = [axes[n] if before[n] == shape[first + n] else opaque(shape[first + n]) for n in range(len(before))]
    return (*map(opaque, shape[:first]), *kept)


def _unsqueezed(call: Call, axes: Axes, number: int) -> Axes:
    place = call.args[1] % call.made[number].dim()
    return (*axes[:place], (), *axes[place:])


def _squeezed(call: Call, axes: Axes, _number: int) -> Axes:
    before = call.given[0].shape
    said = call.args[1] if len(call.args) > 1 else range(len(before))
    gone = {number % len(before) for number in ([said] if isinstance(said, int) else said)}
    return tuple(axis for n, axis in enumerate(axes) if n not in gone or before[n] != 1)


def _sliced(call: Call, axes: Axes, number: int) -> Axes:
    place = _argument(call, 1)
    length, own = call.given[0].shape[place], call.made[number].shape[place]
    start = call.args[2] if len(call.args) > 2 else None
    step = call.args[4] if len(call.args) > 4 else 1
    if step != 1:
        return (*axes[:place], opaque(own), *axes[place + 1 :])
    first = min(max(start + length if (start or 0) < 0 else start or 0, 0), length)
    return sliced(axes, place, first, first + own)


def _divided(call: Call, axes: Axes, number: int) -> Axes:
    place = _argument(call, 2)
    first = sum(made.shape[place] for made in call.made[:number])
    return sliced(axes, place, first, first + call.made[number].shape[place])


def _selected(call: Call, axes: Axes, _number: int) -> Axes:
    place = _argument(call, 1)
    return _one(axes, place, call.args[2] % call.given[0].shape[place])


def _unbound(call: Call, axes: Axes, number: int) -> Axes:
    return _one(axes, _argument(call, 1), number)


def _one(axes: Axes, place: int, index: int) -> Axes:
    """Return the axes at an index of one of them, which is gone."""
    found = sliced(axes, place, index, index + 1)
    return (*found[:place], *found[place + 1 :])


VIEWS: Mapping[object, Callable[[Call, Axes, int], Axes]] = {
    **dict.fromkeys((_ATEN.alias, _ATEN.detach, _ATEN.clone, _ATEN.lift_fresh, _ATEN.lift_fresh_copy), _same),
    **dict.fromkeys((_ATEN.view, _ATEN._unsafe_view, _ATEN._reshape_alias), _regrouped),
    _ATEN.t: _turned,
    _ATEN.transpose: _transposed,
    _ATEN.permute: _permuted,
    _ATEN.expand: _expanded,
    _ATEN.unsqueeze: _unsqueezed,
    _ATEN.squeeze: _squeezed,
    _ATEN.slice: _sliced,
    **dict.fromkeys((_ATEN.split, _ATEN.split_with_sizes), _divided),
    _ATEN.select: _selected,
    _ATEN.unbind: _unbound,
}
"""For each operation, ``axes(call, axes before, number of the result)``."""


def views(call: Call, is_weight: bool) -> bool:
    """Return whether the call makes views or copies only; a conversion counts as a copy of a weight."""
    packet = call.operation.overloadpacket
    if packet is _ATEN._to_copy:
        return is_weight or call.given[0].dtype == call.made[0].dtype
    return packet in VIEWS and str(call.operation._overloadname) != "dtype"


def viewed(call: Call, view: View) -> list[View]:
    """Return each result as a view of the same source."""
    axes_of = VIEWS.get(call.operation.overloadpacket, _same)
    return [view.viewed(axes_of(call, view.axes, number)) for number in range(len(call.made))]
