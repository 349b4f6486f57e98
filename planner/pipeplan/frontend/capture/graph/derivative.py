"""`Applied`: whether the backward of an autograd function is the derivative of its forward, and not another one.

Some functions only save memory or time, such as an activation that keeps its input instead of what it computes. A graph
of such a forward has the same gradient. A straight-through estimator, a reversed or clipped gradient has another one.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pipeplan.frontend.capture.private import pytree

_LONGEST = 7
"""Length to which axes are cut for the comparison; equal ones stay equal."""
_SCALES = ((0.3, 1e-3), (1.0, 1.0), (4.0, 1e3))
"""Sizes of inputs, and of incoming gradients, which a backward may clip."""
_APART = 1e-6


@dataclass(frozen=True)
class Like:
    """A tensor without values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    wants_gradient: bool

    def drawn(self, scale: float, generator: torch.Generator) -> Tensor:
        """Return random numbers, in float64 where the tensor has floating point; integers are zero."""
        if not self.dtype.is_floating_point:
            return torch.zeros(self.shape, dtype=self.dtype)
        numbers = scale * torch.randn(self.shape, dtype=torch.float64, generator=generator)
        return numbers.requires_grad_(self.wants_gradient)


@dataclass(frozen=True)
class Applied:
    """An autograd function and what it was applied to.

    Attributes
    ----------
    function : type
        The subclass of `torch.autograd.Function`.
    given : tuple or None
        Its arguments, each tensor as `Like`; None if they are not known.
    """

    function: Any
    given: tuple[Any, ...] | None

    @classmethod
    def now(cls, function: Any) -> "Applied":
        """Return the application that is under way, from the frame of ``Function.apply``."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_qualname != "Function.apply":
            frame = frame.f_back
        if frame is None or frame.f_locals.get("kwargs"):
            return cls(function, None)
        return cls(function, tuple(pytree.tree_map(_like, list(frame.f_locals["args"]))))

    def is_derivative(self) -> bool:
        """Return whether both gradients agree on small random tensors; False if that cannot be computed."""
        if self.given is None or any(isinstance(x, Like) for x in pytree.tree_leaves(self._others)):
            return False
        if not any(isinstance(x, Like) and x.wants_gradient for x in self.given):
            return True  # its backward is never called
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                return all(self._agrees(*scales, seed) for seed, scales in enumerate(_SCALES))
        except Exception:  # it needs other sizes, or a device
            return False

    @property
    def _others(self) -> list[Any]:
        return [x for x in self.given or () if not isinstance(x, Like)]

    def _agrees(self, scale: float, incoming: float, seed: int) -> bool:
        found = self._gradients(self.function.apply, scale, incoming, seed)
        expected = self._gradients(self._plain, scale, incoming, seed)
        return all(
            (one is None and other is None)
            or (
                one is not None
                and other is not None
                and bool(torch.isclose(one, other, rtol=_APART, atol=_APART * incoming).all())
            )
            for one, other in zip(found, expected, strict=True)
        )

    def _gradients(self, call: Any, scale: float, incoming: float, seed: int) -> Sequence[Tensor | None]:
        generator = torch.Generator().manual_seed(seed)
        args = [x.drawn(scale, generator) if isinstance(x, Like) else x for x in self.given or ()]
        torch.manual_seed(seed)
        made = call(*args)
        outputs = [x for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor)]
        outputs = [x for x in outputs if x.is_floating_point()]
        wanted = [x for x in args if isinstance(x, Tensor) and x.requires_grad]
        root = sum((x * (incoming * torch.randn(x.shape, dtype=x.dtype, generator=generator))).sum() for x in outputs)
        if not isinstance(root, Tensor) or not root.requires_grad:
            return [torch.zeros_like(x) for x in wanted]
        found = torch.autograd.grad(root, wanted, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]

    def _plain(self, *args: Any) -> Any:
        """Call the forward alone, for autograd to follow."""
        if self.function.setup_context is not torch.autograd.Function.setup_context:
            return self.function.forward(*args)
        return self.function.forward(_Context(), *args)


class _Context(SimpleNamespace):
    """What a forward gets from torch, without effect."""

    def __getattr__(self, name: str) -> Any:
        if name in ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable") or (
            name == "set_materialize_grads"
        ):
            return lambda *_: None
        if name == "needs_input_grad":
            return (True,) * 64
        raise AttributeError(name)


def _like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return Like(tuple(min(int(n), _LONGEST) for n in value.shape), value.dtype, value.requires_grad)
