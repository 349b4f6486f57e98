"""The one door to torch's pipelining engine. Everything private of ``torch.distributed.pipelining`` is imported here.

The engine runs actions, moves tensors and calls autograd. What this module adds closes its known pits:

- metadata is given, never inferred by running the model on garbage (that would spoil BatchNorm statistics);
- losses are kept by micro-batch, so the last stage may run forwards in any order;
- receive buffers live from arrival to use, not for all micro-batches of a step;
- what crosses a boundary is contiguous and no view, gradients too;
- gradients are never rescaled; the loss carries the weight of its micro-batch;
- sends and receives come from `pipeplan_executor.lower`, in one order for each pair of ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.errors import PlanError
from pipeplan.schedule import Action, Kind
from pipeplan_executor.lower import Owners, Receive, Send, Step
from pipeplan_executor.observe import Recorder
from pipeplan_executor.split import Boundary

SUPPORTED = ("2.13",)
"""Releases of torch whose engine this module was tested with."""

if not torch.__version__.startswith(SUPPORTED):
    raise PlanError(
        f"torch {torch.__version__} is installed; the executor builds on private parts of its pipelining engine and "
        f"was tested with {', '.join(SUPPORTED)}. Install it: pip install 'torch==2.13.0'"
    )

from torch.distributed.pipelining import PipelineStage  # noqa: E402
from torch.distributed.pipelining._utils import _make_tensor_from_meta  # noqa: E402
from torch.distributed.pipelining.schedules import (  # noqa: E402
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    _Action,
    _PipelineScheduleRuntime,
)

_COMPUTE = {
    Kind.FORWARD: FORWARD,
    Kind.BACKWARD: FULL_BACKWARD,
    Kind.INPUT_GRADIENT: BACKWARD_INPUT,
    Kind.WEIGHT_GRADIENT: BACKWARD_WEIGHT,
}


class EngineStage(PipelineStage):
    """One stage on this rank."""

    def __init__(
        self,
        module: nn.Module,
        number: int,
        stages: int,
        boundary: Boundary,
        owners: Owners,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        # A group of one passes the engine's check that no rank is without a stage; peers are resolved below instead.
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        inputs = boundary.inputs.detach().requires_grad_(number > 0 and boundary.inputs.is_floating_point())
        outputs = boundary.outputs.detach().requires_grad_(boundary.outputs.is_floating_point())
        super().__init__(module, number, stages, device, input_args=(inputs,), output_args=(outputs,), group=alone)
        self.group, self.group_rank, self.group_size = None, dist.get_rank(), dist.get_world_size()
        self._owners, self._recorder = owners, recorder

    def _resolve_peer_global_rank(self, stage_idx: int) -> int:
        return self._owners[stage_idx, 0]

    def _warmup_forward_vote(self, *_: Any, **__: Any) -> Tensor:
        """Metadata is static: there is nothing to vote on, and no message to send for it."""
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, *_: Any, **__: Any) -> Tensor:
        return torch.ones(1, dtype=torch.int32)

    # Buffers ----------------------------------------------------------------------------------------------------------

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        device, self.device = self.device, torch.device("meta")  # no memory yet
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        self.device = device

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        device, self.device = self.device, torch.device("meta")
        super()._setup_backward_recv_info(num_microbatches)
        self.device = device

    def _allocate(self, infos: Sequence[Any]) -> None:
        for info in infos:
            if not info.is_root_arg and info.tensor_meta is not None:
                info.buffer = _make_tensor_from_meta(info.tensor_meta, self.device)

    def _release(self, infos: Sequence[Any]) -> None:
        for info in infos:
            if not info.is_root_arg and info.tensor_meta is not None:
                info.buffer = _make_tensor_from_meta(info.tensor_meta, torch.device("meta"))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Make room, then expect the activation."""
        self._allocate(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Make room, then expect the gradient."""
        self._allocate(self.grad_recv_info.get(bwd_chunk_id, ()))
        return super().get_bwd_recv_ops(bwd_chunk_id)

    # Computing --------------------------------------------------------------------------------------------------------

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """What leaves the stage is contiguous and its own storage: it is sent, and the split backward detaches it."""
        output = super().forward_maybe_with_nosync(*args, **kwargs)
        if self.is_last or not (output._is_view() or not output.is_contiguous()):
            return output
        return output.clone(memory_format=torch.contiguous_format)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run one forward, recorded."""
        with self._recorder.during(Action(Kind.FORWARD, self.stage_index, fwd_chunk_id)):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run one backward, recorded, and free what it needed."""
        kind = Kind.BACKWARD if full_backward else Kind.INPUT_GRADIENT
        with self._recorder.during(Action(kind, self.stage_index, bwd_chunk_id)):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
            if bwd_chunk_id in self.bwd_cache:
                grads = self.bwd_cache[bwd_chunk_id]
                self.bwd_cache[bwd_chunk_id] = tuple(g if g is None else g.contiguous() for g in grads)
        if full_backward:
            self._release(self.args_recv_info[bwd_chunk_id])
            self._release(self.grad_recv_info.get(bwd_chunk_id, ()))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run one weight gradient, recorded, and free what it needed."""
        with self._recorder.during(Action(Kind.WEIGHT_GRADIENT, self.stage_index, bwd_chunk_id)):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._release(self.args_recv_info[bwd_chunk_id])
        self._release(self.grad_recv_info.get(bwd_chunk_id, ()))


class Engine(_PipelineScheduleRuntime):
    """The stages of this rank, and the order of everything they do.

    Parameters
    ----------
    stages : list of EngineStage
    micro_batches : int
    loss : callable
        ``loss(outputs, targets)``, already weighted for one micro-batch.
    steps : sequence of sequence of Step
        For every rank, from `pipeplan_executor.lower.lower`.
    recorder : Recorder
    """

    def __init__(
        self,
        stages: list[EngineStage],
        micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        steps: Sequence[Sequence[Step]],
        recorder: Recorder,
    ) -> None:
        super().__init__(stages, micro_batches, loss, scale_grads=False)
        self.rank = dist.get_rank()
        self._recorder = recorder
        self._by_micro_batch: dict[int, Tensor] = {}
        self.pipeline_order_with_comms = {
            rank: [action for step in own if (action := _engine_action(step)) is not None]
            for rank, own in enumerate(steps)
        }

    def run(self, inputs: Sequence[Tensor | None], targets: Sequence[Tensor | None]) -> dict[int, float]:
        """One pass over all micro-batches; losses of those whose last stage is here, by number.

        ``inputs`` and ``targets`` have one entry a micro-batch; they count on the first and the last stage only.
        """
        for stage in self._stages:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        self._by_micro_batch = {}
        arguments = [() if x is None else (x,) for x in inputs]
        self._step_microbatches(arguments, [{}] * len(inputs), list(targets), None, False)
        losses = {number: float(loss.detach()) for number, loss in self._by_micro_batch.items()}
        self._by_micro_batch = {}
        return losses

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, loss_kwargs: Any = None
    ) -> None:
        if stage.is_last:
            self._by_micro_batch[mb_index] = self._compute_loss(output, target_mbs[mb_index], loss_kwargs)
            self._recorder.extend()  # the loss belongs to the last stage's forward, as in the profile

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Tensor | None:
        return self._by_micro_batch[mb_index] if stage.is_last else None

    def _update_losses(self, stages: Any, losses: Any) -> None:
        """Losses are read from ``_by_micro_batch`` by `run`."""


def _engine_action(step: Step) -> _Action | None:
    """A step in the engine's words; the update is not the engine's to do."""
    if isinstance(step, Action):
        return _Action(step.stage, _COMPUTE[step.kind], step.micro_batch) if step.kind in _COMPUTE else None
    action = step.message.made if isinstance(step, Send) else step.message.reads
    forward = action.kind is Kind.FORWARD
    if isinstance(step, Receive):
        return _Action(action.stage, RECV_F if forward else RECV_B, action.micro_batch)
    return _Action(action.stage, SEND_F if forward else SEND_B, action.micro_batch)
