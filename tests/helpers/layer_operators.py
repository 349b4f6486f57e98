"""Operators of the layers of small models, for samples of any number."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeplan.core.operators import Operator, OperatorGraph
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.find import FoundOperators, find_operators
from pipeplan.frontend.workload import Workload


@dataclass(frozen=True)
class LayersOperators:
    """A model's layers, the inputs of each, and their operators."""

    workload: Workload
    sequence: LayerSequence
    inputs: tuple[tuple[Tensor, ...], ...]
    found: FoundOperators

    def graph(self, layer: str) -> OperatorGraph:
        """Return the operators of a layer."""
        return self.found.graphs[self.found.names[self.sequence.names.index(layer)]]

    def operators(self, layer: str) -> dict[str, Operator]:
        """Return the operators of a layer by name."""
        return {each.name: each for each in self.graph(layer).operators}


def layers_operators(
    build: Callable[[], Workload], size: int = 2, group: tuple[str, ...] = (), *, loss: bool = True
) -> LayersOperators:
    """Capture a model for ``size`` samples, and find its operators."""
    workload = build()
    inputs, targets = workload.draw(size, torch.Generator().manual_seed(0))
    sequence = capture_layers(workload.module, inputs, both_modes=False, group=group)
    given, values = [], tensors(inputs)
    for number, layer in enumerate(sequence.layers):
        given.append(tuple(v.detach().requires_grad_(bool(number) and v.is_floating_point()) for v in values))
        values = tensors(layer(*given[-1]))
    last = (lambda outputs, wanted: workload.loss(sequence.restore(outputs), wanted)) if loss else None
    found = find_operators(workload.module, sequence, given, size, nullcontext, last, targets)
    return LayersOperators(workload, sequence, tuple(given), found)


def chain(*layers: nn.Module, width: int = 16) -> Workload:
    """A linear layer and these layers in a chain, of six tokens a sample."""

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 6, width, generator=generator), torch.zeros(samples)

    return Workload(nn.Sequential(nn.Linear(width, width), *layers), draw, lambda outputs, _: outputs.square().mean())


class Attention(nn.Module):
    """Grouped-query attention of three matrices with rotated queries and keys, and a gated perceptron, as in Llama.

    ``eager``: attention written as products, and with dropout.
    """

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2, *, eager: bool = False) -> None:
        super().__init__()
        self.heads, self.groups, self.eager = heads, groups, eager
        head = width // heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, groups * head, bias=False)
        self.value, self.out = nn.Linear(width, groups * head), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.drop = nn.Dropout(0.1 if eager else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        head = width // self.heads
        y = self.norm(x)
        query = _rotated(self.query(y).view(batch, length, self.heads, head).transpose(1, 2))
        key = _rotated(self.key(y).view(batch, length, self.groups, head).transpose(1, 2))
        value = self.value(y).view(batch, length, self.groups, head).transpose(1, 2)
        key, value = (_repeated(each, self.heads // self.groups) for each in (key, value))
        if self.eager:
            scores = self.drop((query @ key.transpose(-1, -2) / head**0.5).softmax(-1))
            mixed = scores @ value
        else:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * torch.ones(x.shape[-1], device=x.device)
    return x * angles.cos() + torch.cat((-x[..., half:], x[..., :half]), -1) * angles.sin()


def _repeated(x: Tensor, times: int) -> Tensor:
    batch, groups, length, head = x.shape
    return x[:, :, None].expand(batch, groups, times, length, head).reshape(batch, groups * times, length, head)


def llama_like() -> Workload:
    """One block of `Attention`."""
    return chain(Attention())


def eager() -> Workload:
    """One block of `Attention` written as products, with dropout."""
    return chain(Attention(groups=4, eager=True))


class PostNorm(nn.Module):
    """Attention of three matrices that read the block's input, with a norm behind the sum, as in BERT.

    Scores have a whole bias; the softmax is the one of torch's attention where that has a gradient, as in T5.
    """

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("bias", torch.ones(1, heads, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        query, key, value = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        bias = self.get_buffer("bias").repeat(len(x), 1, 1, 1)
        mixed = torch._safe_softmax(query @ key.transpose(-1, -2) + bias, -1) @ value
        return self.norm(x + self.out(mixed.transpose(1, 2).flatten(2)))


def post_norm() -> Workload:
    """One block of `PostNorm`."""
    return chain(PostNorm())


class Fused(nn.Module):
    """Attention whose matrix has all queries before all keys and all values, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, 4, 4).transpose(1, 2) for part in self.fused(x).split(width, dim=2)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def fused() -> Workload:
    """One block of `Fused`."""
    return chain(Fused())
