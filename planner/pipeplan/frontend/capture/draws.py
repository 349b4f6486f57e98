"""`RepeatedDraws`: the same random numbers for a model and for its layers, whatever the order and number of calls."""

from typing import Any

import torch
from torch import Tensor

from pipeplan.frontend.capture.private import TorchDispatchMode

_SEED = 1


class RepeatedDraws(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode in which dropout keeps everything, and other operations draw the same numbers at each call.

    A module and the layers that were cut out of it draw in different orders, and replicas of a layer see only some of
    the micro-batches. Here they can be compared. Dropout multiplies by a mask of zeros and ones, divided by the share
    of ones. The mask becomes that share, whatever the shape of the tensor. The random state of the process is left as
    it was.

    Attributes
    ----------
    drew : bool
        True once numbers were drawn that depend on the shape of a tensor, and so on the size of the batch.
    dropped : bool
        True once a dropout was called, which kept everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drew = self.dropped = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _keeps_all(func, args, kwargs):
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default:
            self.dropped = True
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is torch.ops.aten.bernoulli_.float and args[0].is_floating_point():
            self.dropped = True
            return args[0].fill_(args[1] if len(args) > 1 else kwargs.get("p", 0.5))
        self.drew = True
        generator = kwargs.get("generator") or torch.default_generator
        state = generator.get_state()
        generator.manual_seed(_SEED)
        try:
            return _in_order(func, args, kwargs)
        finally:
            generator.set_state(state)


def _keeps_all(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether it is an attention without dropout, which draws nothing."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    return not (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))


def _in_order(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what ``func`` draws into a tensor's elements, by their places and not by their addresses."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or first.is_contiguous():
        return func(*args, **kwargs)
    made = func(first.contiguous(), *args[1:], **kwargs)
    return first.copy_(made) if func._schema.is_mutable and isinstance(made, Tensor) else made
