"""A U-shaped net for segmentation (Ronneberger et al., 2015), whose skip connections span most of the model.

::

    image ─▶ down0 ─────────────────── skip ──────────────────▶ up0 ─▶ head
               ╰▶ down1 ──────────── skip ─────────────▶ up1 ─▶╯
                    ╰▶ down2 ─ … ─▶ bottom ─▶ … ─▶ up2 ─▶╯

Images are padded, so that a skip has the size of what it joins, and normalised by group norm, which does not depend on
the batch.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload

GROUPS = 4
"""Groups of channels that are normalised together."""


class Twice(nn.Module):
    """Two 3×3 convolutions that keep the image's size, each with group norm and a rectifier."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height, width)."""
        x = functional.relu_(self.first_norm(self.first(x)))
        return functional.relu_(self.second_norm(self.second(x)))


class Up(nn.Module):
    """Twice the size, joined with the skip of that size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.widen = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        self.twice = Twice(2 * outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """(batch, inputs, height, width) and (batch, outputs, 2 · height, 2 · width) to the latter shape."""
        return self.twice(torch.cat([skip, self.widen(x)], 1))


class UNet(nn.Module):
    """Halve the image ``depth`` times, then double it as often, with a skip connection at every size."""

    def __init__(self, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip((channels, *widths[:-2]), widths[:-1], strict=True))
        self.bottom = Twice(widths[-2], widths[-1])
        self.up = nn.ModuleList(Up(b, a) for a, b in pairwise(widths))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, classes, height, width); both sides a multiple of 2^depth."""
        x, skips = image, []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, skip in zip(reversed(self.up), reversed(skips), strict=True):
            x = up(x, skip)
        return self.head(x)


def unet(image: int = 64, classes: int = 4, width: int = 32, depth: int = 4) -> Workload:
    """Segmentation of random images: 8 million parameters; the original is twice as wide, on larger images."""

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(samples, 3, image, image, generator=generator)
        return images, torch.randint(classes, (samples, image, image), generator=generator)

    return Workload(UNet(3, classes, width, depth), draw, functional.cross_entropy)
