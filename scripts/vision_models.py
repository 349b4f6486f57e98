"""Small workloads of models of ``torchvision`` with random weights, for `models_page`: ``vision_models:resnet18``."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan import Workload

CLASSES = 10
SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (32, {}),
    "resnet50": (32, {}),
    "vgg11": (32, {}),
    "vgg16_bn": (32, {}),
    "densenet121": (32, {}),
    "googlenet": (64, {"aux_logits": False, "init_weights": False}),
    "inception_v3": (80, {"aux_logits": False, "init_weights": False}),
    "mobilenet_v3_small": (32, {}),
    "efficientnet_b0": (32, {}),
    "convnext_tiny": (32, {}),
    "swin_t": (32, {}),
    "vit_b_16": (32, {"image_size": 32}),
}
"""For each model, the sides of its images, and what it is built with."""


def __getattr__(name: str) -> Callable[[], Workload]:
    """Return the function that builds the workload of a model."""
    if name not in SIZES:
        raise AttributeError(name)
    return partial(workload, name)


def workload(name: str) -> Workload:
    """Return a model for images of a few pixels, with cross entropy."""
    import torchvision

    size, options = SIZES[name]
    module = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES, **options)
    return Workload(module, partial(_draw, size), nn.functional.cross_entropy)


def _draw(size: int, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    images = torch.randn(samples, 3, size, size, generator=generator)
    return images, torch.randint(CLASSES, (samples,), generator=generator)
