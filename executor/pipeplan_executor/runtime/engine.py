"""Execution of this rank's steps in order: actions on its stages, sends and receives of tensors.

::

    Receive ─▶ inbox ─▶ Action ─▶ outbox ─▶ Send ─▶ in transit ─▶ Settle
                          │  ▲
                          ╰──╯ a neighbouring stage on the same rank

If no receive is posted when a message is sent, gloo first announces the message, and sends it when the receive is
posted. On busy cores this round trip takes longer than a small message itself, so receives of small messages are posted
early. For large messages the round trip is short in comparison, and a buffer that waits costs memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.core.schedule import Action, Kind, find_readers
from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.flow import Tensors
from pipeplan_executor.runtime.gloo import schedule_messages
from pipeplan_executor.runtime.program.lower import Message, Receive, Send, Settle, Step
from pipeplan_executor.runtime.recorder import Recorder
from pipeplan_executor.runtime.routes import Routes
from pipeplan_executor.sharding.sequence import AXIS, stream_of
from pipeplan_executor.stages.seeds import Moment
from pipeplan_executor.stages.stage import Boundary, StageWork

SMALL = 1 << 20
"""Bytes of the largest message whose receive is posted early: few wait at a time, beside a process of 200 MiB."""


def message_tensors(message: Message, boundaries: Sequence[Boundary]) -> Tensors:
    """Return a message's tensors as the reader has them, on the meta device: inputs, or gradients of its outputs."""
    if message.made.kind is Kind.FORWARD:
        return boundaries[message.reads.stage].of(message.reads.slice).inputs
    outputs = boundaries[message.reads.stage].of(message.reads.slice).outputs
    return tuple(tensor for tensor in outputs if tensor.requires_grad)


def is_small(message: Message, boundaries: Sequence[Boundary]) -> bool:
    """Return whether the receive of the message is posted early."""
    return message_bytes(message, boundaries) <= SMALL


def message_bytes(message: Message, boundaries: Sequence[Boundary]) -> int:
    """Return the bytes of a message's tensors."""
    return sum(int(tensor.nbytes) for tensor in message_tensors(message, boundaries))


OncePerStep = Callable[[Action], None]
"""Runs a reduction or an update."""


@dataclass(slots=True)
class _Arrival:
    """Tensors that have arrived, or that ``works`` receive into ``pieces``: of tensor ``split`` those of its tokens."""

    tensors: Tensors
    pieces: Sequence[Tensors] = ()
    works: Sequence[Any] = ()
    split: int | None = None

    def get(self) -> Tensors:
        for work in self.works:
            work.wait()
        if self.pieces:
            self.tensors = tuple(
                torch.cat(row, AXIS) if n == self.split and len(row) > 1 else row[0]
                for n, row in enumerate(self.pieces)
            )
        self.pieces = self.works = ()
        return self.tensors


class Engine:
    """Interpreter of the steps of this rank on its stages.

    Parameters
    ----------
    stages : mapping of int to StageWork
        By number.
    boundaries : sequence of Boundary
        Inputs and outputs of every stage of the plan.
    steps : sequence of Step
        Steps of this rank, from `pipeplan_executor.runtime.program.lower.lower`.
    only_forward : sequence of Step
        Steps of this rank for a pass without backwards.
    once_per_step : callable
        Runs a reduction or an update.
    moment : Moment
        Its micro-batch is set before every action.
    routes : Routes
        The processes of a message.
    """

    def __init__(
        self,
        stages: Mapping[int, StageWork],
        boundaries: Sequence[Boundary],
        steps: Sequence[Step],
        only_forward: Sequence[Step],
        once_per_step: OncePerStep,
        recorder: Recorder,
        device: torch.device,
        moment: Moment,
        routes: Routes,
    ) -> None:
        self._stages, self._boundaries, self._steps, self._only_forward = stages, boundaries, steps, only_forward
        self._once_per_step, self._recorder, self._device, self._moment = once_per_step, recorder, device, moment
        self._readers = find_readers(step for step in steps if isinstance(step, Action))
        self._last = len(boundaries) - 1
        world = dist.group.WORLD
        assert world is not None
        self._world, self._routes = world, routes  # called directly: isend and irecv do the same and take twice as long
        self._inbox: dict[Action, _Arrival] = {}
        self._outbox: dict[Action, Tensors] = {}
        self._in_transit: dict[Message, tuple[Sequence[Any], Tensors]] = {}
        moved = [message_bytes(step.message, boundaries) for step in steps if not isinstance(step, Action)]
        if moved:
            schedule_messages(max(moved))

    def run(self, inputs: Sequence[Batch | None], targets: Sequence[Batch | None]) -> dict[int, float]:
        """Run all steps once; return the losses of micro-batches whose last stage is here, by number.

        ``inputs`` and ``targets`` have one entry per micro-batch; only the first and the last stage read them.
        """
        self._clear()
        self._run(self._steps, inputs, targets)
        return self._losses()

    def _run(self, steps: Sequence[Step], inputs: Sequence[Batch | None], targets: Sequence[Batch | None]) -> None:
        for step in steps:
            if isinstance(step, Action):
                if step in self._inbox:
                    self._inbox[step].get()  # waiting does not count as the action's time
                with self._recorder.during(step):
                    self._act(step, inputs, targets)
            else:
                self._move(step)

    def infer(
        self, inputs: Sequence[Batch | None], targets: Sequence[Batch | None]
    ) -> tuple[dict[int, list[Tensors]], dict[int, float]]:
        """Run forwards only, without graphs; return outputs and losses of the last stage's micro-batches here.

        With targets there are losses and no outputs; without targets there are outputs, of each slice, and no losses.
        """
        self._clear()
        found: dict[int, list[Tensors]] = {}
        for step in self._only_forward:
            if not isinstance(step, Action):
                self._move(step)
                continue
            number = step.micro_batch
            self._stages[step.stage].at(number, step.slice)
            made = self._stages[step.stage].infer(number, self._inputs_of(step, inputs[number]), targets[number])
            if step.stage < self._last:
                self._hand_over(step, made)
            elif targets[number] is None:
                found.setdefault(number, []).append(made)
        return found, self._losses()

    def _clear(self) -> None:
        for stage in self._stages.values():
            stage.clear()
        self._inbox, self._outbox, self._in_transit = {}, {}, {}

    def _losses(self) -> dict[int, float]:
        return {number: float(loss) for stage in self._stages.values() for number, loss in stage.losses.items()}

    def _act(self, action: Action, inputs: Sequence[Batch | None], targets: Sequence[Batch | None]) -> None:
        kind = action.kind
        stage, number = self._work(action)
        if kind.per_micro_batch:
            stage.at(number, action.slice)
        if kind is Kind.FORWARD:
            made = stage.forward(number, self._inputs_of(action, inputs[number]), targets[number])
            self._hand_over(action, made)
        elif kind is Kind.BACKWARD:
            self._hand_over(action, stage.backward(number, self._gradients(action)))
        elif kind is Kind.INPUT_GRADIENT:
            self._hand_over(action, stage.input_gradient(number, self._gradients(action)))
        elif kind is Kind.WEIGHT_GRADIENT:
            stage.weight_gradient(number)
        else:
            self._once_per_step(action)

    def _work(self, action: Action) -> tuple[StageWork, int]:
        """Return whose work an action is, and the number of its micro-batch in the batch; the moment is set to it."""
        self._moment.micro_batch = action.micro_batch
        return self._stages[action.stage], action.micro_batch

    def _inputs_of(self, action: Action, inputs: Batch | None) -> Tensors:
        return self._inbox.pop(action).get() if action.stage else tensors(inputs)

    def _gradients(self, action: Action) -> Tensors:
        arrived = self._inbox.pop(action, None)
        return () if arrived is None else arrived.get()

    def _hand_over(self, action: Action, made: Tensors) -> None:
        """Pass tensors to the neighbouring stage: to its inbox on this rank, or to the outbox for a send."""
        if not made:
            return
        reader = self._readers.get(action)
        if reader is None:
            self._outbox[action] = made
        else:
            self._inbox[reader] = _Arrival(made)

    def _move(self, step: Send | Receive | Settle) -> None:
        message = step.message
        if isinstance(step, Send):
            routes = self._routes.sends(message)
            split = stream_of(message_tensors(message, self._boundaries))
            parts = [
                (process, tensor[:, tokens].contiguous() if tokens and n == split else tensor)
                for n, tensor in enumerate(self._outbox.pop(message.made, ()))
                for process, tokens in routes
            ]
            works = [self._world.send([part], process, 0) for process, part in parts]
            self._in_transit[message] = works, tuple(part for _, part in parts)
        elif isinstance(step, Settle):
            for work in self._in_transit.pop(message)[0]:
                work.wait()
        elif expected := message_tensors(message, self._boundaries):
            routes = self._routes.receives(message)
            split = stream_of(expected)
            pieces = [
                tuple(self._buffer(tensor, tokens if n == split else None) for _, tokens in routes)
                for n, tensor in enumerate(expected)
            ]
            works = [
                self._world.recv([piece], process, 0)
                for row in pieces
                for piece, (process, _) in zip(row, routes, strict=True)
            ]
            self._inbox[message.reads] = _Arrival((), pieces, works, split)

    def _buffer(self, tensor: Tensor, tokens: slice | None) -> Tensor:
        """An empty tensor like one on the meta device, or for some of its tokens."""
        shape = list(tensor.shape)
        if tokens is not None:
            shape[AXIS] = tokens.stop - tokens.start
        return torch.empty(shape, dtype=tensor.dtype, device=self._device)
