"""Loss scaling for fp16: small gradients are made larger on their way, and an update that overflowed is left out.

Torch's own scaler for sharded training decides: it tells overflows to all ranks and adapts the scale (Micikevicius et
al., Mixed Precision Training, 2018, section 3.2).
"""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor


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
