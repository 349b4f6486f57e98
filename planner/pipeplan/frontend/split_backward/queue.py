"""Queue of the delayed weight gradients of a micro-batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

Work = partial[None]
"""Function that adds to the gradients of one operation's parameters; its arguments are the stored operands, the
parameters first."""


class WeightQueue:
    """Queue of the delayed weight gradients of one stage.

    It is open during the forward of a micro-batch with split backward, and during its I, in which recomputation runs
    that forward again. While it is closed, the operations are torch's own, weight gradients included.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._works: list[Work] = []

    @contextmanager
    def opened(self, really: bool = True) -> Iterator[None]:
        """Context in which the queue is open, also for other threads, like the one of autograd on CUDA."""
        self.is_open = really
        try:
            yield
        finally:
            self.is_open = False

    def put(self, work: Work) -> None:
        """Append delayed work."""
        self._works.append(work)

    def take(self) -> tuple[Work, ...]:
        """Return all delayed work, in order, and empty the queue."""
        works, self._works = tuple(self._works), []
        return works

    def clear(self) -> None:
        """Drop all delayed work, for example after an aborted step."""
        self._works = []

    def __len__(self) -> int:
        return len(self._works)

    def takes(self, weight: Tensor, bias: Tensor | None = None) -> bool:
        """True if an operation with these parameters puts their gradients into the queue.

        Both or none are delayed: if one is frozen or computed, or has a hook on its gradient, both gradients are
        computed by autograd.
        """
        if not (self.is_open and torch.is_grad_enabled()):
            return False
        return all(plain(each) for each in (weight, bias) if each is not None)


JOINED = "joined_backward"
"""Attribute of a layer that takes gradients in its forward: none of its weight gradients is delayed."""


def plain(parameter: Tensor) -> bool:
    """True if a parameter is trained and has no hooks on its gradient."""
    hooked = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    return type(parameter) is nn.Parameter and parameter.requires_grad and not hooked


def targets(work: Work) -> tuple[Tensor, ...]:
    """Return the parameters to whose gradients delayed work adds."""
    return tuple(each for each in work.args[:2] if isinstance(each, Tensor) and each.requires_grad)


def run_delayed(works: Sequence[Work]) -> None:
    """Run delayed work: the W of a micro-batch."""
    with torch.no_grad():
        for work in works:
            work()


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add a gradient to the parameter's; ``gradient`` may be kept, and must not be used by the caller afterwards."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)


def autocast_operands(x: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    """Cast the operands of a product as autocast would.

    Autocast caches such copies for the next operation that reads the same weight. A copy made here is invisible to
    autograd, so that the other operation would lose its gradient. So the copy is made by hand, and not cached.
    """
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *others
    kind = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(kind) for t in (x, *others))
