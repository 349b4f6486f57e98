"""Mixed precision: weights stay as they are, and matrix products run in 16 bits (torch.autocast)."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from pipeplan.batch import Batch, tensors
from pipeplan.capture.blank import fake, on_fake
from pipeplan.capture.row import Row
from pipeplan.errors import InputError
from pipeplan_executor.private import FakeTensorMode
from pipeplan_executor.shapes import Tensors, as_tuple

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By the name that `Pipeline` takes. Only the gradients of fp16 have to be scaled."""


def autocast(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward and its loss; None changes nothing.

    Raises
    ------
    InputError
        If there is no such precision.
    """
    if precision is None:
        return nullcontext()
    if precision not in FORMATS:
        raise InputError(f"precision {precision!r} is not known; choose from {', '.join(FORMATS)}, or None")
    return torch.autocast(device.type, FORMATS[precision])  # type: ignore[no-any-return]


def sharing_casts(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """Around a step: every weight is converted once for all its micro-batches, not kept once for each in flight.

    Torch keeps converted weights until the outermost context ends; this one is off, and outside of all others.
    """
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, FORMATS[precision], enabled=False)  # type: ignore[no-any-return]


def formats(row: Row, inputs: Batch, precision: str, device: torch.device) -> tuple[Tensors, ...]:
    """What the first layer takes and what each one returns under autocast, on the meta device.

    Found without computing anything, on a device that is only pretended: on the meta device autocast does nothing.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # what a captured layer keeps has values
    layers = on_fake(nn.ModuleList(row.layers), mode, device)
    found: list[Tensors] = [tuple(fake(tensor, mode, device) for tensor in tensors(inputs))]
    with mode, autocast(precision, device):
        for layer in layers:
            found.append(as_tuple(layer(*found[-1])))
    return tuple(tuple(map(_on_meta, row)) for row in found)


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)
