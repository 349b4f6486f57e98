"""Small random nets, with gradients by joined and by split backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeplan.frontend.split_backward.attach import attached
from pipeplan.frontend.split_backward.queue import WeightQueue, run_delayed

Gradients = list[Tensor | None]


class Shifted(nn.Linear):
    """A user's linear layer with a rectifier after the map of its base class."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear map and a rectifier."""
        return functional.relu(super().forward(x)) + self.weight.sum()


class Recurrent(nn.Module):
    """An LSTM over the second axis, whose weight gradients are never delayed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs without the states."""
        return self.cell(x)[0]


class Attention(nn.Module):
    """Torch's attention module, which passes its weights to functions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend between all positions."""
        return self.mix(x, x, x, need_weights=False)[0]


class Bare(nn.Module):
    """Products with parameters outside any layer of torch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``x · W + b``, then the product again without the bias."""
        once = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(x.shape)
        return once @ self.weight


class Turned(nn.Module):
    """Module whose output is a view that is not contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        """Transpose the last two axes."""
        return x.transpose(-1, -2)


@st.composite
def sequence_nets(draw: Callable) -> nn.Sequential:
    """Nets of token numbers (samples, length): an embedding, some layers of one width, sometimes a tied head."""
    width = 4
    table = nn.Embedding(7, width, padding_idx=draw(st.sampled_from([None, 2])))
    layers: list[nn.Module] = [table]
    for kind in draw(st.lists(st.sampled_from(range(9)), min_size=1, max_size=5)):
        layers.append(
            [
                lambda: nn.Linear(width, width),
                lambda: nn.Linear(width, width, bias=False),
                lambda: Shifted(width, width),
                lambda: nn.LayerNorm(width),
                lambda: nn.Tanh(),
                lambda: Recurrent(width),
                lambda: Attention(width),
                lambda: Bare(width),
                lambda: nn.Sequential(Turned(), nn.Conv1d(width, width, 3, padding="same"), Turned()),
            ][kind]()
        )
    head = nn.Linear(width, 7, bias=draw(st.booleans()))
    if draw(st.booleans()):
        head.weight = table.weight
    if draw(st.booleans()):
        layers[draw(st.integers(0, len(layers) - 1))].requires_grad_(False)
    return nn.Sequential(*layers, head).double()


@st.composite
def image_nets(draw: Callable) -> nn.Sequential:
    """Nets of images (samples, 4, 6, 6): convolutions of every kind, norms and rectifiers."""
    layers: list[nn.Module] = []
    for kind in draw(st.lists(st.sampled_from(range(5)), min_size=1, max_size=4)):
        groups, bias = draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
        size, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        mode = draw(st.sampled_from(["zeros", "reflect", "circular"]))
        layers.append(
            [
                lambda g=groups, b=bias, k=size, s=stride, m=mode: nn.Conv2d(
                    4, 4, k, s, padding=1, groups=g, bias=b, padding_mode=m
                ),
                lambda g=groups, b=bias, k=size: nn.Conv2d(4, 4, k, padding="same", groups=g, bias=b),
                lambda g=groups, b=bias, k=size, s=stride: nn.ConvTranspose2d(4, 4, k, s, groups=g, bias=b),
                lambda: nn.BatchNorm2d(4),
                lambda: nn.ReLU(),
            ][kind]()
        )
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)).double()


def inputs_of(net: nn.Sequential, number: int) -> Tensor:
    """Micro-batch ``number``, the same every time; floating-point inputs require a gradient."""
    generator = torch.Generator().manual_seed(number)
    if isinstance(net[0], nn.Embedding):
        return torch.randint(7, (2, 3), generator=generator)
    return torch.randn(2, 4, 6, 6, generator=generator, dtype=torch.float64).requires_grad_()


@dataclass(frozen=True)
class Result:
    """Gradients of each micro-batch's input and of all parameters, and the number of delayed operations."""

    inputs: Gradients
    parameters: Gradients
    waited: int

    def differs(self, other: "Result") -> bool:
        """True if the results differ by more than rounding, or only one of them has some gradient."""
        pairs = zip((*self.inputs, *self.parameters), (*other.inputs, *other.parameters), strict=True)
        return any(not _close(a, b) for a, b in pairs)


def gradients(
    net: nn.Sequential, module: nn.Module, split: Sequence[bool], recompute: bool = False, there: bool = False
) -> Result:
    """Compute the gradients of several micro-batches in flight at once, each joined or split; all I before all W.

    Parameters
    ----------
    module : torch.nn.Module
        The module to run: the net, or a captured module with the same parameters.
    there : bool
        Start with existing gradients.
    """
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter) if there and parameter.requires_grad else None
    queue = WeightQueue()
    given = [inputs_of(net, number) for number in range(len(split))]
    outputs, waiting = [], []
    with attached(queue, [module]):
        for x, apart in zip(given, split, strict=True):
            with queue.opened(apart):
                outputs.append(checkpoint(module, x, use_reentrant=False) if recompute else module(x))
        for output, apart in zip(outputs, split, strict=True):
            with queue.opened(apart):
                torch.autograd.backward([output], [output.detach().cos()])
            waiting.append(queue.take())
        for works in waiting:
            run_delayed(works)
    assert len(queue) == 0
    return Result([x.grad for x in given], [p.grad for p in net.parameters()], sum(map(len, waiting)))


def _close(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool(torch.allclose(a, b, rtol=1e-10, atol=1e-10 * max(1.0, float(b.abs().max()))))
