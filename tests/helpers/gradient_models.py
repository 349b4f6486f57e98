"""Small modules with what acts on gradients only, with state, and with random numbers, in functions and chains."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from helpers.cut_by_hand import WIDTH, Trunk
from pipeplan.frontend.capture import Stages


class Round(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


rounded = Round.apply


class Swish(torch.autograd.Function):
    """An activation that keeps its input alone, with its own derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        part = torch.sigmoid(ctx.slope * x)
        return gradient * part * (1 + ctx.slope * x * (1 - part)), None


class Clipped(torch.autograd.Function):
    """The identity, with a gradient that is clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-1, 1)


class Weighed(torch.autograd.Function):
    """The identity, with so many times its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.by * gradient, None


@torch.library.custom_op("pipeplan_tests::round_through", mutates_args=())
def round_through(x: Tensor) -> Tensor:
    """Round, as an operator."""
    return x.round()


@round_through.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


round_through.register_autograd(lambda ctx, gradient: gradient)


class Between(Trunk):
    """A trunk with a function between its two linear maps, and a residual, so that it is no chain."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], prepare: Callable[[Any], object] | None = None):
        super().__init__()
        self.function, self.memory = function, None
        self.counter, self.log = 0, []
        self.own_numbers = np.random.default_rng(3)
        self.register_buffer("calls", torch.zeros(()))
        if prepare is not None:
            prepare(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)) + x)

    def between(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Layer(nn.Module):
    """A layer of a chain from a function, with a matrix of its own."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.mix, self.counter = function, nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.function(self, x))


class Opened(nn.Sequential):
    """A chain whose forward does something between its layers."""

    def __init__(self, layer: Callable[[Any, nn.Module, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.counter, self.each = 0, layer

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = self.each(self, layer, x)
        return x


class Whole(nn.Module):
    """A part of a chain that does something with what its own matrix returns, or with it, and returns that tensor."""

    def __init__(self, after: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.mix, self.after = nn.Linear(WIDTH, WIDTH), after

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x)
        self.after(self, y)
        return y


class Checkpointed(nn.Module):
    """A part of a chain that runs its matrix in a reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.mix, x, use_reentrant=True)


class Halved(nn.Sequential):
    """A chain that is called in its own way."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 0.5


def hooked_where_needed(self: Any, y: Tensor) -> None:
    """Scale a gradient, if there is to be one."""
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.2)


def written_beside(self: Any, y: Tensor) -> None:
    """A write that counts no version."""
    y.data.mul_(2)


def clamped(self: Any, y: Tensor) -> None:
    """Bound a bias behind its use."""
    with torch.no_grad():
        self.mix.bias.clamp_(-0.1, 0.1)


def annealed(self: Any, y: Tensor) -> None:
    """Change an attribute of a part in each call."""
    CALLS["number"] += 1
    self.mix.scale = CALLS["number"]


def hooked(self: Any, x: Tensor) -> Tensor:
    """Scale the gradient by a hook on a tensor."""
    y = torch.tanh(x)
    y.register_hook(lambda gradient: gradient * 0.2)
    return y


def node_hooked(self: Any, x: Tensor) -> Tensor:
    """Scale the gradient by a hook on a node of the graph."""
    y = torch.tanh(x)
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 0.2,))
    return y


def saved_halved(self: Any, x: Tensor) -> Tensor:
    """Halve what is saved for the backward."""
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor / 2):
        return torch.tanh(x)


def saved_unchanged(self: Any, x: Tensor) -> Tensor:
    """Keep what is saved for the backward in the memory of the CPU."""
    with torch.autograd.graph.save_on_cpu():
        return torch.tanh(x)


def inferred(self: Any, x: Tensor) -> Tensor:
    """A part in inference mode."""
    with torch.inference_mode():
        y = torch.tanh(x)
    return y.clone() + x


def penalised(self: Any, x: Tensor) -> Tensor:
    """A gradient within the forward."""
    (gradient,) = torch.autograd.grad(torch.tanh(x).sum(), x, create_graph=True)
    return x + gradient


def moved(self: Any, x: Tensor) -> Tensor:
    """A derivative along a direction."""
    return x + torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),))[1]


def trained_inside(self: Any, x: Tensor) -> Tensor:
    """A backward within the forward."""
    leaf = x.detach().requires_grad_()
    torch.tanh(leaf).sum().backward()
    return x + leaf.grad


def written(self: Any, x: Tensor) -> Tensor:
    """A write that autograd does not see."""
    y = x * 1
    with torch.no_grad():
        y.mul_(2)
    return y


def counted(self: Any, x: Tensor) -> Tensor:
    """Opens over its first ten calls."""
    self.counter += 1
    return x * min(1.0, self.counter / 10)


def counted_in_buffer(self: Any, x: Tensor) -> Tensor:
    """The same with a buffer."""
    self.calls.add_(1)
    return x * (self.calls / 10).clamp(max=1.0)


def carried(self: Any, x: Tensor) -> Tensor:
    """Adds what the last call computed."""
    y = x if self.memory is None else x + self.memory
    self.memory = torch.tanh(x).detach()
    return y


def kept_table(self: Any, x: Tensor) -> Tensor:
    """Makes a table once."""
    if self.memory is None:
        self.memory = torch.arange(WIDTH, dtype=x.dtype)
    return x * self.memory


def shown(self: Any, x: Tensor) -> Tensor:
    """Keeps a result to be looked at."""
    self.memory = torch.sigmoid(x)
    return self.memory


def logged(self: Any, x: Tensor) -> Tensor:
    """Keeps a list of shapes."""
    self.log.append(tuple(x.shape))
    return torch.tanh(x)


def kept_gradient(self: Any, x: Tensor) -> Tensor:
    """Scales by the gradient of what the last call computed."""
    scale = 1.0 if self.memory is None or self.memory.grad is None else 1 + self.memory.grad.norm()
    if x.requires_grad:
        x.retain_grad()
    self.memory = x
    return x * scale


def weight_gradient(self: Any, x: Tensor) -> Tensor:
    """Scales by the gradient of a weight, if it has one."""
    found = self.first.weight.grad
    return x if found is None else x * found.norm()


def freezes(self: Any, x: Tensor) -> Tensor:
    """Freezes a weight when it runs."""
    self.first.weight.requires_grad_(False)
    return torch.tanh(self.first(x))


CALLS = {"number": 0}


def counted_outside(self: Any, x: Tensor) -> Tensor:
    """Counts in a global."""
    CALLS["number"] += 1
    return x * CALLS["number"]


def opened_late(self: Any, x: Tensor) -> Tensor:
    """Counts in a global, and reads it much later."""
    CALLS["number"] += 1
    return x if CALLS["number"] < 1000 else torch.tanh(x)


GENERATOR = torch.Generator()


def generated(self: Any, x: Tensor) -> Tensor:
    """Noise of a generator that is nobody's."""
    return x + torch.rand(x.shape, generator=GENERATOR).to(x.dtype)


def half_dropped(self: Any, x: Tensor) -> Tensor:
    """Leaves something out at random."""
    return x if random.random() < 0.5 else torch.tanh(x)


def normed(self: Any) -> None:
    """Give the module two kinds of norm that change buffers."""
    self.first = nn.utils.parametrizations.spectral_norm(self.first)
    self.norm = nn.BatchNorm1d(WIDTH)


def backward_hook(self: Any) -> None:
    """Scale the gradient of a submodule's input."""
    self.second.register_full_backward_hook(lambda module, given, taken: (given[0] * 0.2,))


def scripted(self: Any) -> None:
    """Script a part."""
    self.second = torch.jit.script(self.second)


def old_norm(self: Any) -> None:
    """Compute a weight before each forward, by a hook."""
    torch.nn.utils.weight_norm(self.first)


def named_code(self: Any) -> None:
    """A parameter with a name that a graph module has."""
    self.code = nn.Parameter(torch.ones(WIDTH))


def forward_hook(self: Any) -> None:
    """Change a submodule's output."""
    self.first.register_forward_hook(lambda module, given, made: made * 3)


def parameter_hook(self: Any) -> None:
    """Scale the gradient of a weight."""
    self.first.weight.register_hook(lambda gradient: gradient * 0.2)


def parameter_end_hook(self: Any) -> None:
    """Do something with a weight's gradient as soon as it is there."""
    self.first.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(0.2))


def one_left_out(self: Any, layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer, or not."""
    return layer(x) if random.random() < 2 else x


def counting_layer(self: Any, layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer and count."""
    self.counter += 1
    return layer(x)


def second_without(self: Any, layer: nn.Module, x: Tensor) -> Tensor:
    """Run the second layer without gradients."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and layer is not self[1]):
        return layer(x)


def second_lower(self: Any, layer: nn.Module, x: Tensor) -> Tensor:
    """Run the second layer in 16 bits."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=layer is self[1]):
        return layer(x).to(x.dtype)


def with_hook(module: nn.Module) -> nn.Module:
    """Add a hook that scales the gradient of a module's input."""
    module.register_full_backward_hook(lambda layer, given, taken: (given[0] * 0.2,) if given[0] is not None else None)
    return module


@dataclass(frozen=True)
class Case:
    """A module, and why it is refused, as a pattern; empty if it must be right."""

    build: Callable[[], nn.Module]
    refused: str = ""


def between(function: Callable[[Any, Tensor], Tensor], refused: str = "", prepare: Any = None) -> Case:
    """A module that is no chain."""
    return Case(lambda: Between(function, prepare), refused)


def chain(function: Callable[[Any, Tensor], Tensor], refused: str = "") -> Case:
    """A chain with this function in its second layer."""
    return Case(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Layer(function), nn.Linear(WIDTH, WIDTH)), refused)


def whole(after: Callable[[Any, Tensor], object], refused: str = "") -> Case:
    """A chain with a part that does this with what its matrix returns."""
    return Case(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Whole(after), nn.Linear(WIDTH, WIDTH)), refused)


def linears(count: int = 3) -> list[nn.Module]:
    """So many linear maps."""
    return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


HERE = r"\(gradient_models.py, line \d+"
CASES: dict[str, Case] = {
    # what acts on gradients
    "a function": between(lambda self, x: Round.apply(x), rf"autograd function Round {HERE}.*Stages.*custom_op"),
    "a function by another name": between(lambda self, x: rounded(x), rf"autograd function Round {HERE}"),
    "a function with its own derivative": between(lambda self, x: Swish.apply(x, 1.5)),
    "a function that clips gradients": between(lambda self, x: Clipped.apply(x), rf"autograd function Clipped {HERE}"),
    "a function that is once its derivative": between(
        lambda self, x: Weighed.apply(Weighed.apply(x, 1.0), -1.0), rf"autograd function Weighed {HERE}"
    ),
    "an operator with a gradient of its own": between(lambda self, x: round_through(x)),
    "a hook on a tensor": between(hooked, rf"hook on a tensor's gradient {HERE}"),
    "a hook on a node": between(node_hooked, rf"reads a tensor's grad_fn {HERE}"),
    "a hook on saved tensors": between(saved_halved, rf"hooks on tensors saved for the backward {HERE}"),
    "saved tensors elsewhere": between(saved_unchanged),
    "a module's backward hook": between(lambda self, x: x, r"second has a hook on its backward", backward_hook),
    "a module's forward hook": between(lambda self, x: x, "", forward_hook),
    "a parameter's hook": between(lambda self, x: x, r"first.weight has a hook on its gradient", parameter_hook),
    "a parameter's last hook": between(lambda self, x: x, r"first.weight has a hook on its grad", parameter_end_hook),
    "a reentrant checkpoint": between(
        lambda self, x: checkpoint(torch.tanh, x, use_reentrant=True), rf"use_reentrant=True {HERE}"
    ),
    "a checkpoint": between(lambda self, x: checkpoint(torch.tanh, x, use_reentrant=False)),
    "inference mode": between(inferred, rf"torch.inference_mode {HERE}"),
    "a gradient in the forward": between(penalised, rf"takes gradients in its forward {HERE}"),
    "a backward in the forward": between(trained_inside, rf"takes gradients in its forward {HERE}"),
    "a forward derivative": between(moved, rf"takes gradients in its forward {HERE}"),
    "a tensor beside autograd": between(lambda self, x: x * x.data, rf"no values {HERE}.*x.detach\(\)"),
    "a part that was scripted": between(lambda self, x: x, "second is a torch.jit.ScriptModule", scripted),
    "a detached part": between(lambda self, x: x + 2 * x.detach()),
    "a write without gradients": between(written),
    "a gradient that was kept": between(kept_gradient, rf"reads a gradient .*{HERE}"),
    "a weight's gradient": between(weight_gradient, rf"reads a gradient .*{HERE}"),
    "a weight that is frozen in the forward": between(freezes, r"whether first.weight requires a gradient"),
    # state
    "a counter": between(counted, rf"changes its attribute counter in its forward {HERE}"),
    "a counter in a buffer": between(counted_in_buffer),
    "a counter outside": between(counted_outside, rf"computes something else each time.*{HERE}"),
    "a threshold outside": between(
        opened_late, r"changes CALLS of opened_late in its forward \(gradient_models.py, line"
    ),
    "a list of calls": between(logged, rf"changes its attribute log in its forward {HERE}"),
    "the time": between(lambda self, x: x * time.time(), rf"computes something else each time.*{HERE}"),
    "what the last call computed": between(carried, rf"computes something else each time.*{HERE}"),
    "a table that is kept": between(kept_table),
    "a result that is shown": between(shown),
    "norms": between(lambda self, x: self.norm(x), "", normed),
    # random numbers
    "Python's random numbers": between(half_dropped, rf"draws Python's random numbers in its forward {HERE}"),
    "numpy's random numbers": between(lambda self, x: x * np.random.rand(), rf"draws numpy's random.*{HERE}"),
    "random numbers of its own": between(lambda self, x: x * self.own_numbers.random(), r"changes its attribute own_n"),
    "random numbers of a generator of torch": between(
        generated, rf"computes with a random generator of its own {HERE}"
    ),
    "dropout": between(lambda self, x: functional.dropout(x, 0.5)),
    "noise": between(lambda self, x: x + torch.randn_like(x)),
    # chains, whose layers run as they stand
    "a chain with a function": chain(lambda self, x: Round.apply(x)),
    "a chain with a hook on a tensor": chain(hooked),
    "a chain with a hook on saved tensors": chain(saved_halved),
    "a chain with a reentrant checkpoint": chain(lambda self, x: checkpoint(torch.tanh, x, use_reentrant=True)),
    "a chain with a counter": chain(counted),
    "a chain with dropout": chain(lambda self, x: functional.dropout(x, 0.5)),
    "a chain with a hook on what a part returns": whole(hooked_where_needed),
    "a chain with a part that detaches": whole(lambda self, y: y.detach_()),
    "a chain with a part that writes beside autograd": whole(written_beside),
    "a chain with a part that bounds its weight": whole(clamped),
    "a chain with a part that changes a part": whole(annealed),
    "a chain called in its own way": Case(lambda: Halved(*linears())),
    "a chain with a reentrant checkpoint of a part": Case(
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Checkpointed(), nn.Linear(WIDTH, WIDTH))
    ),
    "a weight that a hook computes": between(lambda self, x: torch.tanh(x), "", old_norm),
    "a parameter named code": between(lambda self, x: x * self.code, "", named_code),
    "a chain with a hook on a layer": Case(lambda: nn.Sequential(*linears(2), with_hook(nn.Linear(WIDTH, WIDTH)))),
    "a chain with a hook as a whole": Case(lambda: with_hook(nn.Sequential(*linears())), "hook"),
    "a chain that leaves layers out": Case(lambda: Opened(one_left_out, *linears()), "Python's random numbers"),
    "a chain that counts": Case(lambda: Opened(counting_layer, *linears()), "changes its attribute counter"),
    "a chain of which a part has no gradient": Case(lambda: Opened(second_without, *linears())),
    "a chain of which a part has 16 bits": Case(lambda: Opened(second_lower, *linears())),
    "stages with a hook as a whole": Case(lambda: with_hook(Stages(*linears())), "hooks as a whole"),
}
