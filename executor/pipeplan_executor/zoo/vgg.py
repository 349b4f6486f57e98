"""VGG-16 (Simonyan and Zisserman, 2015, configuration D), as a flat chain of 22 layers.

::

    conv1_1 conv1_2 pool1  conv2_1 conv2_2 pool2  …  conv5_3 pool5  flatten  fc6 fc7 fc8
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload

CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Output channels of the convolutions, group by group; a pooling that halves the image ends each group."""


class ConvReLU(nn.Conv2d):
    """A 3×3 convolution that keeps the image's size, and a rectifier."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height, width)."""
        return functional.relu(super().forward(x))


class LinearReLU(nn.Linear):
    """A fully connected layer and a rectifier."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) to (batch, outputs)."""
        return functional.relu(super().forward(x))


def vgg16(
    image: int = 64,
    classes: int = 1000,
    classifier: int = 1024,
    channels: tuple[tuple[int, ...], ...] = CHANNELS,
) -> Workload:
    """VGG-16 on small images, with a classifier a quarter as wide as the original's; `vgg16_224` is the original."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    depth = 3
    for group, outputs in enumerate(channels, start=1):
        for number, width in enumerate(outputs, start=1):
            layers[f"conv{group}_{number}"] = ConvReLU(depth, width)
            depth = width
        layers[f"pool{group}"] = nn.MaxPool2d(2)
    side = image // 2 ** len(channels)
    layers["flatten"] = nn.Flatten()
    layers["fc6"] = LinearReLU(depth * side * side, classifier)
    layers["fc7"] = LinearReLU(classifier, classifier)
    layers["fc8"] = nn.Linear(classifier, classes)

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(samples, 3, image, image, generator=generator)
        return images, torch.randint(classes, (samples,), generator=generator)

    return Workload(nn.Sequential(layers), draw, functional.cross_entropy)


def vgg16_224() -> Workload:
    """VGG-16 as published: 224×224 images, 4096-wide classifier, 138 million parameters."""
    return vgg16(image=224, classifier=4096)
