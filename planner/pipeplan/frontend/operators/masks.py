"""Values of recorded constants and padding, to see whether a mask of attention hides all later tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeplan.frontend.operators.record import Call

MOST = 1 << 27
"""Numbers of the largest mask that is looked at."""
_NEW = ("new_ones", "new_zeros", "new_full", "zeros_like", "ones_like", "full_like")
"""Operations that read no more than a tensor's shape and type."""


def hides_later(mask: Tensor, calls: Sequence[Call], inputs: Sequence[Tensor] = ()) -> bool:
    """Return whether a recorded mask is known to hide, for each query, all keys behind its own place.

    It is known if calls make it of nothing but numbers, and of whole numbers and bits among the inputs: of these where
    all are 1, which is padding that hides nothing. Not of other inputs, weights or buffers. A run looks at each mask.
    """
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.numel() > MOST:
        return False
    ones = {id(each): torch.ones(each.shape, dtype=each.dtype) for each in inputs if not each.is_floating_point()}
    found = _value(mask, {id(made): call for call in calls for made in call.made}, ones)
    if found is None:
        return False
    hidden = found <= torch.finfo(found.dtype).min if found.is_floating_point() else ~found.bool()
    return bool(torch.where(torch.ones_like(hidden).triu(1), hidden, True).all())


def _value(tensor: Tensor, makers: Mapping[int, Call], known: dict[int, Tensor]) -> Tensor | None:
    """Return the value of a recorded tensor; None if it is not known."""
    if id(tensor) in known:
        return known[id(tensor)]
    call = makers.get(id(tensor))
    if call is None or call.operation._schema.is_mutable or torch.Tag.nondeterministic_seeded in call.operation.tags:
        return None
    values: dict[int, Tensor] = {}
    for given in call.given:
        by_shape = call.name in _NEW
        value = torch.empty((), dtype=given.dtype).expand(given.shape) if by_shape else _value(given, makers, known)
        if value is None:
            return None
        values[id(given)] = value

    def changed(argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return values[id(argument)]
        return type(argument)(map(changed, argument)) if type(argument) in (list, tuple) else argument

    kwargs = {name: changed(value) for name, value in call.kwargs.items()}
    made = call.operation(*changed(call.args), **(kwargs | ({"device": "cpu"} if "device" in kwargs else {})))
    rows = made if isinstance(made, tuple | list) else (made,)
    known.update((id(own), value) for own, value in zip(call.made, rows, strict=True))
    return known[id(tensor)]
