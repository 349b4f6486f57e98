"""ResNet-50 (He et al., 2016, table 1) as a chain: a residual block is one layer, so no skip connection leaves it.

::

    stem  pool  block1_1 … block1_3  block2_1 … block2_4  block3_1 … block3_6  block4_1 … block4_3  mean  flatten  fc

    block    x ─┬─▶ 1×1 ─▶ 3×3 ─▶ 1×1 ─▶ + ─▶        each convolution with batch norm; the first block of a group
                ╰────────(1×1)───────────╯           halves the image (except group 1) and projects the shortcut
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload

BLOCKS = (3, 4, 6, 3)
"""Bottlenecks in each group."""
EXPANSION = 4
"""How many times wider a block's output is than its middle."""


class ConvNorm(nn.Module):
    """A convolution that keeps the image's size, or divides it by the stride, and batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height / stride, width / stride)."""
        return self.norm(self.conv(x))


class Stem(ConvNorm):
    """The first convolution, and a rectifier."""

    def forward(self, x: Tensor) -> Tensor:
        """As `ConvNorm`."""
        return functional.relu(super().forward(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; the stride is in the 3×3 one, as in torchvision's version."""

    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * middle
        self.narrow = ConvNorm(inputs, middle, 1)
        self.across = ConvNorm(middle, middle, 3, stride)
        self.widen = ConvNorm(middle, outputs, 1)
        self.shortcut = ConvNorm(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, 4 · middle, height / stride, width / stride)."""
        inner = functional.relu(self.across(functional.relu(self.narrow(x))))
        return functional.relu(self.widen(inner) + self.shortcut(x))


def resnet50(image: int = 64, classes: int = 1000, width: int = 64, blocks: tuple[int, ...] = BLOCKS) -> Workload:
    """ResNet-50 on small images; `resnet50_224` has the published size. ``width`` is that of the stem."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=Stem(3, width, 7, 2), pool=nn.MaxPool2d(3, 2, padding=1))
    depth = width
    for group, count in enumerate(blocks, start=1):
        middle = width * 2 ** (group - 1)
        for number in range(1, count + 1):
            layers[f"block{group}_{number}"] = Bottleneck(depth, middle, 2 if group > 1 and number == 1 else 1)
            depth = EXPANSION * middle
    layers |= {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(depth, classes)}

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(samples, 3, image, image, generator=generator)
        return images, torch.randint(classes, (samples,), generator=generator)

    return Workload(nn.Sequential(layers), draw, functional.cross_entropy)


def resnet50_224() -> Workload:
    """ResNet-50 on 224×224 images: 26 million parameters."""
    return resnet50(image=224)
