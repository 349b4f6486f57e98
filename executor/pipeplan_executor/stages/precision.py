"""Mixed precision on the ranks of a plan: formats between stages, converted weights of a step, loss scaling for fp16.

Loss scaling multiplies gradients, so that small ones do not underflow, and skips an update whose gradients overflowed.
Torch's scaler for sharded training does this: it shares overflows among all ranks and adapts the scale (Micikevicius
et al., Mixed Precision Training, 2018, section 3.2).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.flow import Tensors, as_tuple
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import FakeTensorMode, fake, on_fake
from pipeplan.frontend.profile.passes import FORMATS, autocast


def sharing_casts(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """Context for a step in which each weight is converted once, not once for every micro-batch in flight.

    Torch keeps converted weights until the outermost autocast context ends. This outermost one is itself disabled.
    """
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, FORMATS[precision], enabled=False)  # type: ignore[no-any-return]


def formats(sequence: LayerSequence, inputs: Batch, precision: str, device: torch.device) -> tuple[Tensors, ...]:
    """Return the inputs of the first layer and the outputs of each layer under autocast, on the meta device.

    Nothing is computed: the layers run on fake tensors of the device, since autocast does nothing on the meta device.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # constants of a captured layer have values
    layers = on_fake(nn.ModuleList(sequence.layers), mode, device)
    found: list[Tensors] = [tuple(fake(tensor, mode, device) for tensor in tensors(inputs))]
    with mode, autocast(precision, device):
        for layer in layers:
            found.append(as_tuple(layer(*found[-1])))
    return tuple(tuple(map(_on_meta, row)) for row in found)


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)


class LossScale:
    """Loss scale, the same on every rank.

    A batch keeps the scale that it began with, as the one before it may change the scale meanwhile (``staleness`` 1).

    Parameters
    ----------
    group : ProcessGroup, optional
        Of all ranks, by default the one of everything else.
    twin : LossScale, optional
        The scale of the batches between, whose scaler this one shares.

    Attributes
    ----------
    scaler : torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler
        Has `state_dict` and `load_state_dict`.
    """

    def __init__(
        self, device: torch.device, group: dist.ProcessGroup | None = None, twin: "LossScale | None" = None
    ) -> None:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # a second that few runs need

        self.scaler: ShardedGradScaler = (
            ShardedGradScaler(device.type, process_group=group) if twin is None else twin.scaler
        )
        self._one, self._late = torch.ones((), device=device), twin is not None
        if twin is not None:
            twin._late = True
        self.begin()  # ranks without the last stage need its value too

    def begin(self) -> None:
        """Take the scale of a batch."""
        self._scale = self.scaler.scale(self._one)

    def scaled(self, gradient: Tensor) -> Tensor:
        """Return the first gradient of a backward, scaled."""
        return (gradient * self._scale).to(gradient.dtype)

    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divide by the scale in place and adapt the scale; return whether all gradients of all ranks are finite."""
        for gradient in gradients if self._late else ():
            gradient.mul_(self.scaler.scale(self._one) / self._scale)
        holder = _GradientHolder(gradients)
        self.scaler.unscale_(holder)
        finite = self.scaler.step(holder) is True
        self.scaler.update()
        return finite


class _GradientHolder:
    """Stand-in for an optimiser, for torch's scaler: its step returns True, so the scaler's result shows overflows."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self.param_groups = [{"params": [SimpleNamespace(grad=gradient) for gradient in gradients]}]

    def step(self) -> bool:
        return True
