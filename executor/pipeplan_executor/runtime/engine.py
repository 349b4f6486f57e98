"""Execution of this rank's steps, one after the other: actions on its stages, tensors in and out.

::

    Receive ─▶ inbox ─▶ Action ─▶ outbox ─▶ Send ─▶ under way ─▶ Settle
                          │  ▲
                          ╰──╯ a neighbouring stage on the same rank

A message whose receive is not posted when it is sent is first announced, and travels when it is asked for: on busy
cores that takes gloo longer than a small message itself. So small ones are expected early. For the others the way there
and back is short beside the message, and a buffer that waits costs memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipeplan.core.schedule import Action, Kind, find_readers
from pipeplan.frontend.batch import Batch, tensors
from pipeplan_executor.runtime.program.lower import Message, Receive, Send, Settle, Step
from pipeplan_executor.runtime.recorder import Recorder
from pipeplan_executor.stages.seeds import Moment
from pipeplan_executor.stages.shapes import Tensors
from pipeplan_executor.stages.stage import Boundary, StageWork

SMALL = 1 << 20
"""Bytes of the largest message that is expected early: few of them wait at a time, beside a process of 200 MiB."""


def carried(message: Message, boundaries: Sequence[Boundary]) -> Tensors:
    """The outputs of the earlier one of its two stages, or the gradients that they want; on the meta device."""
    if message.made.kind is Kind.FORWARD:
        return boundaries[message.made.stage].outputs
    return tuple(tensor for tensor in boundaries[message.reads.stage].outputs if tensor.requires_grad)


def is_small(message: Message, boundaries: Sequence[Boundary]) -> bool:
    """Whether a buffer for the message may wait."""
    return sum(int(tensor.nbytes) for tensor in carried(message, boundaries)) <= SMALL


OnceAStep = Callable[[Action], None]
"""Does a reduction or an update."""


@dataclass(slots=True)
class _Arrival:
    """Tensors that are there, or on their way into ``tensors``."""

    tensors: Tensors
    works: Sequence[Any] = ()

    def get(self) -> Tensors:
        for work in self.works:
            work.wait()
        self.works = ()
        return self.tensors


class Engine:
    """The stages of this rank, and the order of everything they do.

    Parameters
    ----------
    stages : mapping of int to StageWork
        By number.
    boundaries : sequence of Boundary
        Of every stage of the plan.
    steps : sequence of Step
        Of this rank, from `pipeplan_executor.runtime.program.lower.lower`.
    only_forward : sequence of Step
        The same for a pass without backwards.
    once_a_step : callable
    moment : Moment
        Is told the micro-batch of every action.
    group : ProcessGroup
        Its ranks are the plan's.
    """

    def __init__(
        self,
        stages: Mapping[int, StageWork],
        boundaries: Sequence[Boundary],
        steps: Sequence[Step],
        only_forward: Sequence[Step],
        once_a_step: OnceAStep,
        recorder: Recorder,
        device: torch.device,
        moment: Moment,
        group: dist.ProcessGroup,
    ) -> None:
        self._stages, self._boundaries, self._steps, self._only_forward = stages, boundaries, steps, only_forward
        self._once_a_step, self._recorder, self._device, self._moment = once_a_step, recorder, device, moment
        self._readers = find_readers(step for step in steps if isinstance(step, Action))
        self._last = len(boundaries) - 1
        self._group = group  # asked directly: isend and irecv do the same and take twice as long
        self._inbox: dict[Action, _Arrival] = {}
        self._outbox: dict[Action, Tensors] = {}
        self._under_way: dict[Message, tuple[Sequence[Any], Tensors]] = {}

    def run(self, inputs: Sequence[Batch | None], targets: Sequence[Batch | None]) -> dict[int, float]:
        """All steps once; losses of those micro-batches whose last stage is here, by number.

        ``inputs`` and ``targets`` have one entry a micro-batch; they count on the first and the last stage only.
        """
        self._clear()
        for step in self._steps:
            if isinstance(step, Action):
                if step in self._inbox:
                    self._inbox[step].get()  # to wait is not the action's time
                with self._recorder.during(step):
                    self._act(step, inputs, targets)
            else:
                self._move(step)
        return self._losses()

    def infer(
        self, inputs: Sequence[Batch | None], targets: Sequence[Batch | None]
    ) -> tuple[dict[int, Tensors], dict[int, float]]:
        """Forward only, without graphs: what the last stage returns for its micro-batches here, and their losses.

        There are no losses where there are no targets, and no outputs are kept where there are.
        """
        self._clear()
        found: dict[int, Tensors] = {}
        for step in self._only_forward:
            if not isinstance(step, Action):
                self._move(step)
                continue
            number = step.micro_batch
            made = self._stages[step.stage].infer(number, self._given(step, inputs), targets[number])
            if step.stage < self._last:
                self._hand_over(step, made)
            elif targets[number] is None:
                found[number] = made
        return found, self._losses()

    def _clear(self) -> None:
        for stage in self._stages.values():
            stage.clear()
        self._inbox, self._outbox, self._under_way = {}, {}, {}

    def _losses(self) -> dict[int, float]:
        return {number: float(loss) for stage in self._stages.values() for number, loss in stage.losses.items()}

    def _act(self, action: Action, inputs: Sequence[Batch | None], targets: Sequence[Batch | None]) -> None:
        kind, number = action.kind, action.micro_batch
        self._moment.micro_batch = number
        if kind is Kind.FORWARD:
            made = self._stages[action.stage].forward(number, self._given(action, inputs), targets[number])
            self._hand_over(action, made)
        elif kind is Kind.BACKWARD:
            self._hand_over(action, self._stages[action.stage].backward(number, self._gradients(action)))
        elif kind is Kind.INPUT_GRADIENT:
            self._hand_over(action, self._stages[action.stage].input_gradient(number, self._gradients(action)))
        elif kind is Kind.WEIGHT_GRADIENT:
            self._stages[action.stage].weight_gradient(number)
        else:
            self._once_a_step(action)

    def _given(self, action: Action, inputs: Sequence[Batch | None]) -> Tensors:
        return self._inbox.pop(action).get() if action.stage else tensors(inputs[action.micro_batch])

    def _gradients(self, action: Action) -> Tensors:
        arrived = self._inbox.pop(action, None)
        return () if arrived is None else arrived.get()

    def _hand_over(self, action: Action, made: Tensors) -> None:
        """To the stage next door, which is on this rank or behind a send."""
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
            made = self._outbox.pop(message.made, ())
            self._under_way[message] = ([self._group.send([tensor], message.target, 0) for tensor in made], made)
        elif isinstance(step, Settle):
            for work in self._under_way.pop(message)[0]:
                work.wait()
        elif expected := carried(message, self._boundaries):
            buffers = tuple(torch.empty(t.shape, dtype=t.dtype, device=self._device) for t in expected)
            works = [self._group.recv([buffer], message.source, 0) for buffer in buffers]
            self._inbox[message.reads] = _Arrival(buffers, works)
