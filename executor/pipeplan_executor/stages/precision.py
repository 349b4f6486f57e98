"""Mixed precision on the ranks of a plan: what passes between stages, what lasts for a step, and loss scaling for fp16.

Loss scaling makes small gradients larger on their way, and leaves out an update that overflowed. Torch's own scaler for
sharded training decides: it sends overflows to all ranks and adapts the scale (Micikevicius et
al., Mixed Precision Training, 2018, section 3.2).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.private import FakeTensorMode, fake, on_fake
from pipeplan.frontend.capture.row import Row
from pipeplan.frontend.profile.passes import FORMATS, autocast
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


class LossScale:
    """The scale, the same on every rank.

    Attributes
    ----------
    scaler : torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler
        Has `state_dict` and `load_state_dict`.
    """

    def __init__(self, device: torch.device) -> None:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # a second that few runs need

        self.scaler = ShardedGradScaler(device.type, process_group=None)
        self.scaler.scale(torch.zeros((), device=device))  # ranks without the last stage need its value too

    def scaled(self, gradient: Tensor) -> Tensor:
        """With what a backward begins, instead of ``gradient``."""
        return self.scaler.scale(gradient)

    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divide by the scale, in place; whether all gradients of all ranks are finite. Then the scale adapts."""
        asked = _Asked(gradients)
        self.scaler.unscale_(asked)
        finite = self.scaler.step(asked) is True
        self.scaler.update()
        return finite


class _Asked:
    """To torch's scaler an optimiser, whose step tells that it would have been taken."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self.param_groups = [{"params": [SimpleNamespace(grad=gradient) for gradient in gradients]}]

    def step(self) -> bool:
        return True
