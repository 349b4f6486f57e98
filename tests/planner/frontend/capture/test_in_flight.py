"""Layers that carry something between the passes of two micro-batches, apart from their graph, are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from helpers.cut_by_hand import WIDTH
from pipeplan.core.errors import PlanError
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.capture.flow import trace


class Does(nn.Module):
    """A layer from a function, with a matrix, a buffer and attributes of its own."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.function, self.kept, self.size = nn.Linear(WIDTH, WIDTH), function, None, 1.0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Stashed(torch.autograd.Function):
    """A square that keeps its input in the module in place of its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, home: Does) -> Tensor:
        ctx.home, home.kept = home, x.detach()
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return 2 * ctx.home.kept * gradient, None


class Scaled(torch.autograd.Function):
    """A forward that is scaled by the last backward, in the class."""

    size = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * Scaled.size

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Scaled.size = 1 + float(gradient.abs().mean())
        return gradient


class Clipped(torch.autograd.Function):
    """A gradient that is clipped by the mean of those before it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, home: Does) -> Tensor:
        ctx.home = home
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.home.size = (ctx.home.size + float(gradient.norm())) / 2
        return gradient.clamp(-ctx.home.size, ctx.home.size), None


def kept_gradient(self: Does, x: Tensor) -> Tensor:
    """The gradient of what the last call computed scales this one."""
    size = 1.0 if self.kept is None or self.kept.grad is None else 1 + float(self.kept.grad.norm())
    y = self.mix(x)
    if y.requires_grad:
        y.retain_grad()
        self.kept = y
    return y * size


def weight_gradient(self: Does, x: Tensor) -> Tensor:
    """The gradient of a weight scales the output."""
    found = self.mix.weight.grad
    return self.mix(x) * (1.0 if found is None else 1 + found.norm())


def _hooked(self: Does, y: Tensor, hook: Callable[[Tensor], Any]) -> Tensor:
    if y.requires_grad:
        y.register_hook(hook)
    return y


def decayed(self: Does, x: Tensor) -> Tensor:
    """A forward makes a weight smaller, which autograd does not see."""
    self.mix.weight.data.mul_(0.9)
    return self.mix(x)


def decayed_in_sight(self: Does, x: Tensor) -> Tensor:
    """The same, and autograd refuses the earlier backward."""
    with torch.no_grad():
        self.mix.weight.mul_(0.9)
    return self.mix(x)


def bounded(self: Does, x: Tensor) -> Tensor:
    """A forward bounds a weight, which the next finds bounded."""
    self.mix.weight.data.clamp_(-0.1, 0.1)
    return self.mix(x)


def hook_leaves(self: Does, x: Tensor) -> Tensor:
    """A hook leaves the norm of a gradient for the next forward."""
    return _hooked(self, self.mix(x) * self.size, lambda gradient: setattr(self, "size", 1 + float(gradient.norm())))


def hook_reads(self: Does, x: Tensor) -> Tensor:
    """A hook reads what the last forward left."""
    self.size = float(x.detach().norm()) if not x.is_meta else 1.0
    return _hooked(self, self.mix(x), lambda gradient: gradient * self.size)


def own_variable(self: Does, x: Tensor) -> Tensor:
    """A hook reads a variable of its own forward."""
    size = x.detach().norm()
    return _hooked(self, self.mix(x), lambda gradient: gradient * size)


def inner(self: Does, x: Tensor) -> Tensor:
    """A gradient of a backward within this forward."""
    leaf = x.detach().requires_grad_()
    if leaf.grad is not None:
        leaf.grad = None
    torch.tanh(leaf).sum().backward()
    return self.mix(x) + leaf.grad


def buffer_hooked() -> Does:
    """The hook of a module writes a buffer that its forward reads."""

    def keep(layer: Does, _: object, gradients: tuple[Tensor, ...]) -> None:
        layer.scale = 1 + gradients[0].norm()

    layer = Does(lambda self, x: self.mix(x) * self.scale)
    layer.register_full_backward_hook(keep)
    return layer


def normed_again() -> Does:
    """A reentrant checkpoint adds to running statistics twice."""
    layer = Does(lambda self, x: checkpoint(self.norm, self.mix(x), use_reentrant=True))
    layer.norm = nn.BatchNorm1d(WIDTH)
    return layer


def logging() -> Does:
    """The hook of a module only looks at a gradient."""
    layer = Does(lambda self, x: self.mix(x))
    layer.register_full_backward_hook(lambda own, _, gradients: setattr(own, "size", float(gradients[0].norm())))
    return layer


CARRYING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a kept gradient": (lambda: Does(kept_gradient), "keeps the gradient of a tensor"),
    "a weight's gradient": (lambda: Does(weight_gradient), "reads a gradient"),
    "a hook for a forward": (lambda: Does(hook_leaves), "registers a hook"),
    "a forward for a hook": (lambda: Does(hook_reads), "registers a hook"),
    "a hook for a buffer": (buffer_hooked, "has a hook on its backward"),
    "a write into a weight": (lambda: Does(decayed), "writes into a weight"),
    "a write that is seen": (lambda: Does(decayed_in_sight), "writes into a weight"),
    "statistics in a checkpoint": (normed_again, "use_reentrant=True"),
    "a stash": (lambda: Does(lambda self, x: Stashed.apply(self.mix(x), self)), "autograd function Stashed"),
    "a class": (lambda: Does(lambda self, x: Scaled.apply(self.mix(x))), "autograd function Scaled"),
}
HARMLESS: dict[str, Callable[[], nn.Module]] = {
    "a variable": lambda: Does(own_variable),
    "backwards in order": lambda: Does(lambda self, x: Clipped.apply(self.mix(x), self)),
    "a gradient within": lambda: Does(inner),
    "a bound": lambda: Does(bounded),
    "a look": logging,
    "a checkpoint": lambda: Does(lambda self, x: checkpoint(self.mix, x, use_reentrant=True)),
}


def traced(layer: nn.Module) -> None:
    """Trace a chain with this layer in the middle."""
    inputs = torch.randn(2, WIDTH)
    trace(capture_layers(nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, 2)), inputs), inputs)


@pytest.mark.parametrize("name", CARRYING)
def test_what_passes_between_micro_batches_beside_the_graph_is_refused(name: str) -> None:
    """A plan runs forwards before earlier backwards; the error names the layer and the line."""
    build, said = CARRYING[name]
    with pytest.raises(
        PlanError, match=rf"layer 1 computes something else, or.*{said}.*(test_in_flight.py, line \d+|in place)"
    ):
        traced(build())


@pytest.mark.parametrize("name", HARMLESS)
def test_what_stays_within_a_micro_batch_is_not(name: str) -> None:
    """Hooks, functions and gradients that no other micro-batch's pass reads, and backwards that count in order."""
    traced(HARMLESS[name]())


def test_a_gradient_is_refused_where_the_layer_cannot_be_tried() -> None:
    """A layer that needs another device cannot be called here; the read alone decides."""

    def elsewhere(self: Does, x: Tensor) -> Tensor:
        if not x.is_meta:
            raise RuntimeError
        return weight_gradient(self, x)

    with pytest.raises(PlanError, match="reads a gradient"):
        traced(Does(elsewhere))
