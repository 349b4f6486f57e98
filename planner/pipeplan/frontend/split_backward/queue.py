"""Weight gradients of a micro-batch that wait for their turn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

Work = partial[None]
"""Adds to the gradients of one operation's parameters; its arguments are what it keeps for that."""


class WeightQueue:
    """Where one stage's operations leave their weight gradients.

    It is open during the forward of a micro-batch whose backward is split, and during its I, where recomputation runs
    that forward again. A closed queue changes nothing: the operations are then torch's own, weight gradients included.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._works: list[Work] = []

    @contextmanager
    def opened(self, really: bool = True) -> Iterator[None]:
        """Open within the context. Another thread may look, like the one in which autograd computes on CUDA."""
        self.is_open = really
        try:
            yield
        finally:
            self.is_open = False

    def put(self, work: Work) -> None:
        """Leave something for later."""
        self._works.append(work)

    def take(self) -> tuple[Work, ...]:
        """All that was left, in order; the queue is empty afterwards."""
        works, self._works = tuple(self._works), []
        return works

    def clear(self) -> None:
        """Drop what was left, as after a step that was broken off."""
        self._works = []

    def __len__(self) -> int:
        return len(self._works)

    def waits_for(self, weight: Tensor, bias: Tensor | None = None, *, stand_ins: bool = False) -> bool:
        """Whether an operation with these parameters leaves their gradients here.

        It does so for both or for none: where one is frozen or computed, or somebody has a hook on its gradient, both
        take the ordinary way. ``stand_ins``: the operation's gradients also go to what stands in for a parameter.
        """
        if not (self.is_open and torch.is_grad_enabled()):
            return False
        return all(plain(each) or (stand_ins and _stands_in(each)) for each in (weight, bias) if each is not None)


TAKER = "take_gradient"
"""What a tensor has that stands in for a parameter which lies elsewhere: a function that adds a gradient there."""


def plain(parameter: Tensor) -> bool:
    """Whether a parameter is trained, and nobody but autograd asks for its gradient."""
    hooked = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    return type(parameter) is nn.Parameter and parameter.requires_grad and not hooked


def _stands_in(tensor: Tensor) -> bool:
    return bool(tensor.requires_grad and hasattr(tensor, TAKER))


def work_off(works: Sequence[Work]) -> None:
    """W: do what I left."""
    with torch.no_grad():
        for work in works:
            work()


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add to what is there; ``gradient`` is the caller's to give away."""
    if hasattr(parameter, TAKER):
        getattr(parameter, TAKER)(gradient)
    elif parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)


def lowered(x: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    """What autocast would make of the operands of a product.

    Autocast keeps such copies for the next operation that reads the same weight. One made here is made where autograd
    does not look, and the other operation would lose its gradient; so it is made by hand, and kept by nobody.
    """
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *others
    kind = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(kind) for t in (x, *others))
