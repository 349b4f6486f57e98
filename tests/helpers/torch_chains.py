"""Small chains of modules that the profile tests share."""

import os
import signal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def perceptron() -> tuple[nn.Sequential, Tensor]:
    """Chain of alternating linear layers and ReLU, and a LayerNorm."""
    layers = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)]
    return nn.Sequential(*layers), torch.randn(8, 16)


def convolutions() -> tuple[nn.Sequential, Tensor]:
    """Chain of convolution, batch norm, activations (one in place), pooling, flattening."""
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    ]
    return nn.Sequential(*layers), torch.randn(4, 3, 16, 16)


def transformer() -> tuple[nn.Sequential, Tensor]:
    """Chain of embedding, two blocks, norm and head."""
    layers = [nn.Embedding(50, 16), Block(16, 2), Block(16, 2), nn.LayerNorm(16), nn.Linear(16, 50)]
    return nn.Sequential(*layers), torch.randint(50, (4, 12))


CHAINS = {"perceptron": perceptron, "convolutions": convolutions, "transformer": transformer}


def perceptron_workload() -> Workload:
    """Workload of the perceptron, importable by name for other processes."""
    return Workload(perceptron()[0], _draw, functional.mse_loss)


def fatal_workload() -> Workload:
    """Kill the process that builds the workload, as the system does when memory is exhausted."""
    os.kill(os.getpid(), signal.SIGKILL)
    return perceptron_workload()


def _draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 16, generator=generator), torch.zeros(samples, 8)
