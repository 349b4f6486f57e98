"""Runs the steps of this rank, one after the other: actions on its stages, tensors in and out.

::

    Receive ─▶ inbox ─▶ Action ─▶ outbox ─▶ Send ─▶ under way ─▶ Settle
                          │  ▲
                          ╰──╯ a neighbouring stage on the same rank
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.schedule import Action, Kind
from pipeplan_executor.lower import Message, Receive, Send, Settle, Step
from pipeplan_executor.observe import Recorder
from pipeplan_executor.order import BACKWARD
from pipeplan_executor.split import Boundary
from pipeplan_executor.stage import StageWork


@dataclass
class _Arrival:
    """A tensor that is there, or on its way into ``tensor``."""

    tensor: Tensor
    work: Any = None

    def get(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.tensor


class Engine:
    """The stages of this rank, and the order of everything they do.

    Parameters
    ----------
    stages : mapping of int to StageWork
        By number.
    boundaries : sequence of Boundary
        Of every stage of the plan.
    steps : sequence of Step
        Of this rank, from `pipeplan_executor.lower.lower`.
    once_a_step : callable
        ``once_a_step(action)`` does a reduction or an update.
    """

    def __init__(
        self,
        stages: Mapping[int, StageWork],
        boundaries: Sequence[Boundary],
        steps: Sequence[Step],
        once_a_step: Callable[[Action], None],
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        self._stages, self._boundaries, self._steps = stages, boundaries, steps
        self._once_a_step, self._recorder, self._device = once_a_step, recorder, device
        actions = [step for step in steps if isinstance(step, Action)]
        self._backwards = {(a.stage, a.micro_batch): a for a in actions if a.kind in BACKWARD}
        self._inbox: dict[Action, _Arrival] = {}
        self._outbox: dict[Action, Tensor] = {}
        self._under_way: dict[Message, tuple[Any, Tensor]] = {}

    def run(self, inputs: Sequence[Tensor | None], targets: Sequence[Tensor | None]) -> dict[int, float]:
        """All steps once; losses of those micro-batches whose last stage is here, by number.

        ``inputs`` and ``targets`` have one entry a micro-batch; they count on the first and the last stage only.
        """
        for stage in self._stages.values():
            stage.clear()
        self._inbox, self._outbox, self._under_way = {}, {}, {}
        for step in self._steps:
            if isinstance(step, Action):
                if step in self._inbox:
                    self._inbox[step].get()  # to wait is not the action's time
                with self._recorder.during(step):
                    self._act(step, inputs, targets)
            elif self._carries(step.message):
                self._move(step)
        return {number: float(loss) for stage in self._stages.values() for number, loss in stage.losses.items()}

    def _act(self, action: Action, inputs: Sequence[Tensor | None], targets: Sequence[Tensor | None]) -> None:
        kind, number = action.kind, action.micro_batch
        stage = self._stages[action.stage]
        if kind is Kind.FORWARD:
            given = self._inbox.pop(action).get() if action.stage else inputs[number]
            assert given is not None
            made = stage.forward(number, given, targets[number])
            self._hand_over(action, made, (action.stage + 1, number))
        elif kind in BACKWARD:
            arrived = self._inbox.pop(action, None)
            gradient = None if arrived is None else arrived.get()
            made = (stage.backward if kind is Kind.BACKWARD else stage.input_gradient)(number, gradient)
            self._hand_over(action, made, (action.stage - 1, number))
        elif kind is Kind.WEIGHT_GRADIENT:
            stage.weight_gradient(number)
        else:
            self._once_a_step(action)

    def _hand_over(self, action: Action, made: Tensor | None, neighbour: tuple[int, int]) -> None:
        """To the stage next door, which is on this rank or behind a send."""
        if made is None:
            return
        backward = self._backwards.get(neighbour)
        if backward is None:
            self._outbox[action] = made
        else:
            reader = backward._replace(kind=Kind.FORWARD) if action.kind is Kind.FORWARD else backward
            self._inbox[reader] = _Arrival(made)

    def _move(self, step: Send | Receive | Settle) -> None:
        message = step.message
        if isinstance(step, Send):
            tensor = self._outbox.pop(message.made)
            self._under_way[message] = (dist.isend(tensor, message.target), tensor)
        elif isinstance(step, Settle):
            self._under_way.pop(message)[0].wait()
        else:
            shape = self._shape(message)
            buffer = torch.empty(shape.shape, dtype=shape.dtype, device=self._device)
            self._inbox[message.reads] = _Arrival(buffer, dist.irecv(buffer, message.source))

    def _shape(self, message: Message) -> Tensor:
        """What a message looks like: the output of the earlier one of its two stages, or the gradient of that."""
        return self._boundaries[min(message.made.stage, message.reads.stage)].outputs

    def _carries(self, message: Message) -> bool:
        """False for the gradient of something that has none, like token numbers."""
        return message.made.kind is Kind.FORWARD or self._shape(message).is_floating_point()
