"""Mixed precision on the ranks of a plan: what passes between stages, and what lasts for a step."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.blank import fake, on_fake
from pipeplan.frontend.capture.private import FakeTensorMode
from pipeplan.frontend.capture.row import Row
from pipeplan.frontend.profile.precision import FORMATS, autocast
from pipeplan_executor.stages.shapes import Tensors, as_tuple


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
